"""Rows of a task's data: from a JSONL file (also gzipped), or from the Hub."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import LossyValueError, brief, need
from ..store.reading import json_lines, read_text

Row = Mapping[str, Any]


def read_jsonl(path: str | Path, fields: tuple[str, ...]) -> list[Row]:
    """Return the objects of a JSONL file (``.gz`` too), without empty lines; ``fields`` must be non-empty strings."""
    rows = []
    source = f"`data` ({Path(path).name})"
    for number, row in json_lines(read_text(path, "data"), source):
        where = f"line {number} of {source}"
        for field in fields:
            if not isinstance(row.get(field), str) or not row[field]:
                found = f"holds {brief(row[field])}" if field in row else f"is missing; there are {sorted(row)}"
                raise LossyValueError(f"the field {field!r} has to be a text, but in {where} it {found}")
        rows.append(row)
    if not rows:
        raise LossyValueError(f"`data` ({path}) holds no rows")
    return rows


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
