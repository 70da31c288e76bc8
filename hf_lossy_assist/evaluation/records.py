"""Measured rows on disk, and their origin: versions, command line and machine."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..compat import versions_of
from ..store.folder import append_lines, read_lines, without_folders, write_whole
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


def read(path: Path | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the origin and the rows of a file that :func:`written` has written, finished or not; {} without one."""
    origin, *rows = [row for _, row in read_lines(path)] if path is not None and path.is_file() else [{}]
    return origin, rows


@contextmanager
def written(path: Path | None, origin: dict[str, Any], known: Sequence[Any] = ()) -> Iterator[Callable[[Any], None]]:
    """Give a function that writes a row (a dataclass) at once as a JSON line, with its class as ``"table"``.

    ``origin`` is the first line, and rows that are ``known`` follow. Without a path nothing is written.
    """
    if path is None:
        yield lambda row: None
        return
    path.parent.mkdir(parents=True, exist_ok=True)

    def line(row: Any) -> dict[str, Any]:
        return {"table": type(row).__name__, **dataclasses.asdict(row)}

    begun = ({"table": "provenance", **origin}, *map(line, known))
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in begun).encode())
    yield lambda row: append_lines(path, [line(row)])
