"""Measured rows on disk, and their origin: versions, command line and machine."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from ..acceptors import LAW
from ..compat import versions_of
from ..store.folder import without_folders
from ..version import __version__


def provenance(device: torch.device | str, **settings: Any) -> dict[str, Any]:
    """Return versions, command line, date and machine of this run, with ``settings`` of the measurement.

    Paths to elsewhere are without their folders.
    """
    record = {
        "hf_lossy_assist": __version__,
        "law": LAW,
        **versions_of("transformers"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": _command_line(sys.orig_argv, sys.argv[1:]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads(),
        "device": str(device),
        **settings,
    }
    return without_folders(record)


def _command_line(started: list[str], arguments: list[str]) -> list[str]:
    """Return the command line as a user would type it, with the package's command or the module that was run."""
    *before, program = started[: len(started) - len(arguments)]
    is_study = before[-1:] == ["-m"] and program != "hf_lossy_assist"
    return [*(["python", "-m", program] if is_study else ["lossy-assist"]), *arguments]


@contextmanager
def written(path: Path | None, origin: dict[str, Any]) -> Iterator[Callable[[Any], None]]:
    """Give a function that writes a row (a dataclass) at once as a JSON line, with its class as ``"table"``.

    ``origin`` is the first line. Without a path nothing is written.
    """
    if path is None:
        yield lambda row: None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:

        def write(record: dict[str, Any]) -> None:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()

        write({"table": "provenance", **origin})
        yield lambda row: write({"table": type(row).__name__, **dataclasses.asdict(row)})
