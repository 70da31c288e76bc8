"""Rows of a task's data: from a JSONL file (also gzipped), or from the Hub."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import LossyValueError, need

Row = Mapping[str, Any]


def read_jsonl(path: str | Path, fields: tuple[str, ...]) -> list[Row]:
    """Return the objects of a JSONL file (``.gz`` too), without empty lines; ``fields`` must be non-empty strings."""
    path = Path(path)
    if not path.is_file():
        raise LossyValueError(f"`data` has to be an existing file, but there is none at {str(path)!r}")
    opener = gzip.open if path.suffix == ".gz" else open
    rows = []
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_row(line, fields, f"line {number} of `data` ({path.name})"))
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise LossyValueError(f"`data` ({path}) can't be read as {path.suffix} text: {error}") from error
    if not rows:
        raise LossyValueError(f"`data` ({path}) holds no rows")
    return rows


def _row(line: str, fields: tuple[str, ...], where: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise LossyValueError(f"{where} is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise LossyValueError(
            f"{where} has to be an object with the fields {list(fields)}, but is {line.strip()[:80]!r}"
        )
    for field in fields:
        if not isinstance(row.get(field), str) or not row[field]:
            found = f"holds {row[field]!r}" if field in row else f"is missing; there are {sorted(row)}"
            raise LossyValueError(f"the field {field!r} has to be a text, but in {where} it {found}")
    return row


def prompt_of(row: Row) -> Any:
    """Return a row's ``prompt``, ``question`` or first of ``turns``; None if it has none."""
    return next((first(row[name]) for name in ("prompt", "question", "turns") if row.get(name)), None)


def first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def from_hub(dataset: str, config: str | None, split: str) -> Iterable[Row]:
    need("lab", "a task without a file of its own")
    from datasets import load_dataset

    try:
        return load_dataset(dataset, config, split=split)
    except (OSError, ValueError) as error:
        raise LossyValueError(
            f"the data set {dataset!r} can't be loaded from the Hub ({error}); give a local JSONL file as `data`, or "
            "go online once"
        ) from error


def share(text: str) -> float:
    """Return a hash of ``text`` in [0, 1), for splits that survive any reordering.

    >>> share("How many?") == share("How many?"), 0 <= share("x") < 1
    (True, True)
    """
    return zlib.crc32(text.encode()) / 2**32
