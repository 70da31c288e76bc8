"""A folder of data: files that are whole or missing, appended lines, and a manifest of the data's plan.

Also here: the processes that share a run's work, and with it a folder; and the text files of users.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import LossyValueError
from ..values import from_json

LOCK, MANIFEST, PARTIAL = ".lock", "manifest.json", ".partial"
_PREFIXES = ("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")


typed: ContextVar[tuple[str, ...] | None] = ContextVar("typed", default=None)
"""The words of the command of this package that runs."""


def command_line() -> list[str]:
    """Return what was typed to run this: a command of this package, or a program; nothing for a notebook's kernel."""
    if (words := typed.get()) is not None:
        return ["lossy-assist", *words]
    return [] if "ipykernel" in sys.modules else ["python", *sys.orig_argv[1:]]


@dataclass(frozen=True)
class Process:
    """One of the processes that share the work: its number from 0 on, their count, and its number on this machine."""

    number: int = 0
    count: int = 1
    local: int = 0


def this_process() -> Process:
    """Read this process from the environment, a single one by default; processes never communicate."""
    from accelerate.utils import get_int_from_env

    def read(name: str, mpi: str, default: int) -> int:
        return get_int_from_env([name, *(prefix + mpi for prefix in _PREFIXES)], default)

    return Process(read("RANK", "RANK", 0), read("WORLD_SIZE", "SIZE", 1), read("LOCAL_RANK", "LOCAL_RANK", 0))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in what the system says where one can't be written."""
    try:
        yield
    except OSError as error:
        raise LossyValueError(
            f"`out` has to be a place to write to, but {str(path)!r} can't be written: {error}; what was there before "
            "is kept, so choose another place or make room, and repeat the command"
        ) from error


def folder_lock(folder: Path) -> FileLock:
    """Make a folder if it is missing, and return its lock. The holder, a thread, may take it again."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / LOCK) as lock:
            return lock


@contextmanager
def claimed(folder: Path, process: Process) -> Iterator[None]:
    """Keep other runs from writing to a folder inside a block. The processes that share a run's work have it together.

    Refused while a process of the same number, or a run of another number of processes, is at work in the folder.
    """
    with ExitStack() as stack:
        there = os.path.exists(folder)  # unlike a path's own method, it raises nothing: writing() names what is wrong
        stack.callback(_tidy, folder, there=there)
        with folder_lock(folder):
            own = stack.enter_context(process_lock(folder, process.number, process.count))
            if own.lock_counter == 1:  # else an outer block has it
                # While it is held: whoever waits for a lock takes none whose file is gone.
                stack.callback(Path(own.lock_file).unlink, missing_ok=True)
            for lock in folder.glob(".process-*-of-*.lock"):
                number, count = map(int, re.findall(r"\d+", lock.name))
                if count != process.count:
                    process_lock(folder, number, count).lock.release()
        yield


def _tidy(folder: Path, *, there: bool) -> None:
    """Remove the lock that no process is left to need, and a folder that holds nothing: its run was refused."""
    with suppress(OSError, LossyValueError):
        with folder_lock(folder):
            if not any(folder.glob(".process-*-of-*.lock")):
                (folder / LOCK).unlink()
        if not there:
            folder.rmdir()


def process_lock(folder: Path, number: int, count: int) -> Any:
    """Take the lock of a process of a run, until the returned block ends; raise if another process has it."""
    try:
        return _lock(folder / f".process-{number}-of-{count}.lock").acquire(timeout=0)
    except Timeout:
        raise LossyValueError(
            f"`out` has to be a folder that no other run writes to, but in {str(folder)!r} process {number} of {count} "
            "is at work; wait for it, or choose another folder"
        ) from None


def _lock(path: Path) -> FileLock:
    return FileLock(path, is_singleton=True)


def read_manifest(folder: Path, command: str, kinds: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Read the manifest that ``lossy-assist COMMAND`` wrote; raise if a field is missing or has another type."""
    try:
        manifest = {**from_json((folder / MANIFEST).read_bytes(), "it")}
        if wrong := [name for name, kind in kinds.items() if not isinstance(manifest.get(name), kind)]:
            raise TypeError(f"{wrong[0]!r} is missing or of another type")
    except (OSError, TypeError, ValueError) as error:
        raise LossyValueError(
            f"`{argument}` has to be a folder that `lossy-assist {command}` wrote, but {str(folder / MANIFEST)!r} is "
            f"none of its manifests: {error}; choose another folder"
        ) from error
    return manifest


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file as :func:`write_whole` does."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside ``path``, and give it that name once it is on the disk.

    If the disk is full or the folder can't be written to, ``path`` stays as it was.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with writing(path):
            partial.write_bytes(content)
            _flush(partial, os.O_RDWR)
            os.replace(partial, path)
            if os.name != "nt":  # Windows can't open folders
                _flush(path.parent, os.O_RDONLY)
    except LossyValueError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append JSON lines to a file. If a killed process has left half a line, that is removed first."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with writing(path), path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(lines.encode())


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the rows that :func:`append_lines` wrote to a file, each after its line's number; none if it is missing.

    Half a line at the end, which a killed process has left, is no row; it may end in half a character.
    """
    text = read_text(path, "out", errors="surrogateescape") if path.is_file() else ""
    yield from json_lines(text[: text.rfind("\n") + 1], repr(str(path)))


def read_text(path: str | Path, argument: str, errors: str = "strict") -> str:
    """Return the text of a file in UTF-8, gzipped if it ends in ``.gz``; ``argument`` is what names it.

    ``errors`` says what becomes of bytes that are no UTF-8, as in ``bytes.decode``.
    """
    try:
        path = Path(path)
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig", errors)
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise LossyValueError(
            f"`{argument}` has to be a text file in UTF-8, gzipped only if it ends in .gz, but {str(path)!r} can't be "
            f"read as one: {error}"
        ) from error


def json_lines(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the number and the object of each line that is not empty; ``where`` names the text in an error."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            value = from_json(line, f"line {number} of {where}")
            if not isinstance(value, dict):
                raise LossyValueError(f"line {number} of {where} has to be an object, but is {line.strip()[:80]!r}")
            yield number, value


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
