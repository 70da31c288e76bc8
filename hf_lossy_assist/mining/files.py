"""Files that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

PARTIAL = ".partial"


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a file beside ``path``, and give it that name once it is on the disk.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> write_whole(path, lambda partial: partial.write_text("all of it") and None)
    >>> [file.name for file in path.parent.iterdir()]
    ['notes.txt']
    """
    partial = path.with_name(path.name + PARTIAL)
    write(partial)
    _flush(partial, os.O_RDWR)
    os.replace(partial, path)
    if os.name != "nt":  # Windows can't open folders, and needs not to.
        _flush(path.parent, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
