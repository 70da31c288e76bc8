"""The origin of measurements: versions, command line and machine."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from typing import Any

import torch

from ..compat import versions_of
from ..store.folder import without_folders
from ..version import __version__


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
        "argv": _command_line(sys.orig_argv, sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
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
