"""A folder of data: files that are whole or missing, appended lines, and a manifest of the data's plan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import LossyValueError

MANIFEST, PARTIAL = "manifest.json", ".partial"


def folder_lock(folder: Path, name: str) -> FileLock:
    """Make a folder if it is missing, and return its lock. The holder may take it again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / name) as lock:
            return lock
    except OSError as error:
        raise LossyValueError(f"`out` has to be a folder to write to, but is {str(folder)!r}: {error}") from error


def read_manifest(folder: Path, command: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Read the manifest that ``lossy-assist COMMAND`` wrote; raise if a field is missing or has another type."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if wrong := [name for name, kind in kinds.items() if not isinstance(manifest[name], kind)]:
            raise TypeError(f"`{wrong[0]}` is of another type")
    except (LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise LossyValueError(
            f"`folder` has to be one that `lossy-assist {command}` wrote, but {str(folder / MANIFEST)!r} is none of "
            f"its manifests: {error!r}"
        ) from error
    return manifest


def changes(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None) -> list[str]:
    """Return a sentence for each value that has changed, among those with these ``names`` or among all."""
    names = sorted(before.keys() | now.keys()) if names is None else names
    changed = [name for name in names if before.get(name) != now.get(name)]
    return [f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in changed]


def refuse(folder: Path, found: list[str]) -> None:
    """Raise if ``found`` names a difference to the plan of a folder's data."""
    if found:
        raise LossyValueError(
            f"`out` has to be a new folder or hold data of the same settings, but in {str(folder)!r} "
            f"{'; '.join(found)}; choose another folder"
        )


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file as :func:`write_whole` does."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside ``path``, and give it that name once it is on the disk.

    If the disk is full or the folder can't be written to, ``path`` stays as it was.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        partial.write_bytes(content)
        _flush(partial, os.O_RDWR)
        os.replace(partial, path)
        if os.name != "nt":  # Windows can't open folders
            _flush(path.parent, os.O_RDONLY)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise LossyValueError(
            f"`out` has to be a folder that can be written to, but {str(path)!r} can't be: {error}; what was there "
            "before is kept, and the same command goes on from there"
        ) from error


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append JSON lines to a file. If a killed process has left half a line, that is removed first."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(lines.encode())


def read_lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file; none if it is missing."""
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1].splitlines()


def without_folder(word: str) -> str:
    """Leave the folders out of a path to elsewhere, alone or after ``=``: they say nothing on another machine.

    Examples
    --------
    >>> without_folder("../test.jsonl"), without_folder("judge=/home/me/head"), without_folder("topk:k=2")
    ('test.jsonl', 'judge=head', 'topk:k=2')
    """
    name, equals, path = word.rpartition("=")
    elsewhere = Path(path).is_absolute() or path.startswith("../")
    return f"{name}{equals}{Path(path).name}" if elsewhere else word


def without_folders(record: Any) -> Any:
    """Apply ``without_folder`` to every text of a record that JSON gave."""
    match record:
        case str():
            return without_folder(record)
        case list():
            return [without_folders(value) for value in record]
        case dict():
            return {key: without_folders(value) for key, value in record.items()}
    return record
