"""Files of users and of earlier runs: as text, also gzipped, and as JSON lines."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import LossyValueError
from ..values import from_json


def read_text(path: str | Path, argument: str) -> str:
    """Return the text of a file in UTF-8, gzipped if it ends in ``.gz``; ``argument`` is what names it."""
    try:
        path = Path(path)
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise LossyValueError(
            f"`{argument}` has to be a text file in UTF-8, gzipped only if it ends in .gz, but {str(path)!r} can't be "
            f"read as one: {error}"
        ) from error


def kind_of(path: Path) -> str:
    """Return a file's ending without ``.gz``.

    Examples
    --------
    >>> kind_of(Path("prompts.jsonl.gz"))
    '.jsonl'
    """
    return Path(path.stem if path.suffix == ".gz" else path).suffix


def json_lines(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the number and the object of each line that is not empty; ``where`` names the text in an error."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            value = from_json(line, f"line {number} of {where}")
            if not isinstance(value, dict):
                raise LossyValueError(f"line {number} of {where} has to be an object, but is {line.strip()[:80]!r}")
            yield number, value
