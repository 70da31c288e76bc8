"""Files that are either whole or not there, and their checksums."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from ..errors import LossyValueError

PARTIAL = ".partial"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside ``path``, and give it that name once it is on the disk.

    When the disk is full or the folder can't be written to, ``path`` stays as it was.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        partial.write_bytes(content)
        _flush(partial, os.O_RDWR)
        os.replace(partial, path)
        if os.name != "nt":  # Windows can't open folders, and needs not to.
            _flush(path.parent, os.O_RDONLY)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise LossyValueError(
            f"`out` has to be a folder that can be written to, but {str(path)!r} can't be: {error}; what was mined "
            "before is kept, and the same command goes on from there"
        ) from error


def checksum(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
