"""Measured rows on disk, with what is needed to measure them again."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import transformers


def provenance(device: torch.device | str, **settings: Any) -> dict[str, Any]:
    """Return versions, command line, date and machine of this run, with ``settings`` of the measurement."""
    from .. import __version__

    return {
        "hf_lossy_assist": __version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": ["lossy-assist", *sys.argv[1:]],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads(),
        "device": str(device),
        **settings,
    }


def write_rows(path: Path, origin: dict[str, Any], rows: Iterable[Any]) -> None:
    """Write JSON lines: ``origin`` first, then each row (a dataclass) with its class as ``"table"``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for record in [{"table": "provenance", **origin}, *map(_record, rows)]:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _record(row: Any) -> dict[str, Any]:
    return {"table": type(row).__name__, **dataclasses.asdict(row)}
