"""Where a measurement was made."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..compat.models import versions_of
from ..store.folder import command_line, without_folders
from ..version import __version__


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        if name := next((value.strip() for key, _, value in lines if key.strip() == "model name"), None):
            return name
    return platform.processor() or platform.machine()


def provenance(device: torch.device | str, **settings: Any) -> dict[str, Any]:
    """Return versions, command line, date and machine of this run, with ``settings`` of the measurement.

    Paths to elsewhere are without their folders.
    """
    record = {
        "hf_lossy_assist": __version__,
        **versions_of("transformers"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "argv": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads(),
        "device": str(device),
        **settings,
    }
    return without_folders(record)
