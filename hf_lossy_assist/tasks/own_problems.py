"""Problems with right answers in a file of one's own."""

from __future__ import annotations

import re
import unicodedata

from ..errors import LossyValueError
from .gsm8k import final_number
from .plain_prompts import Prompts, rows_of
from .task import Example, Row, Task, prompt_of

_MARKER = re.compile(r"(?:#{4}|\banswer\s*(?:is\b(?!['’])\s*:?|:|=))\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[\s$€£+−-]*\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?\s*%?")


class Problems(Task):
    """Prompts with an ``answer`` each, which is right after normalisation: case, spaces and the marks around it.

    A number is compared with the number that a response gives as its answer, as in GSM8K. Of a text that says "answer
    is", "answer:" or "####", the rest of that line is the answer, else all of it.

    Parameters
    ----------
    data
        A JSONL or JSON file whose rows have a ``prompt`` and an ``answer``, and perhaps a ``pattern``: a regular
        expression that finds the answer in a response, by its first group if it has one. Its last match counts.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "my.jsonl"
    >>> _ = path.write_text('{"prompt": "What is the capital of France?", "answer": "Paris", "pattern": "(Par[a-z]+)"}')
    >>> task = Problems(str(path))
    >>> task.correct(task.examples("test", 1)[0], "It is Paris, of course.")
    True
    """

    name = "problems"
    splits = ("test",)

    def __init__(self, data: str) -> None:
        rows = rows_of(data)
        self._examples = [_example(row, f"row {i} of `data` ({data})") for i, row in enumerate(rows, 1)]
        self._patterns = {
            e.prompt: row["pattern"] for e, row in zip(self._examples, rows, strict=True) if "pattern" in row
        }
        # Answers that were found by other patterns are others.
        self.scoring = {"patterns": sorted({*self._patterns.values()})} if self._patterns else {}

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return self._examples[:n]

    def extract_answer(self, text: str) -> str | None:
        *_, stated = _MARKER.split(text)
        return normal(stated.split("\n")[0] if stated != text else text) or None

    def answer(self, example: Example, response: str) -> str | None:
        if (pattern := self._patterns.get(example.prompt)) is not None:
            *_, found = [None, *re.finditer(pattern, response)]
            return found and (normal(next((x for x in found.groups() if x is not None), found[0])) or None)
        if _NUMBER.fullmatch(example.answer):
            return final_number(response)
        return self.extract_answer(response)


def normal(text: str) -> str:
    """Return a text in one form: case, spaces, and the marks around it do not count.

    Examples
    --------
    >>> normal(' "Great  Britain." ')
    'great britain'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .,;:!?\"'`*()[]$\\")


def _example(row: Row, where: str) -> Example:
    prompt, answer, pattern = prompt_of(row), row.get("answer"), row.get("pattern", "")
    if not isinstance(prompt, str) or isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise LossyValueError(
            f"{where} has to have a `prompt` and an `answer`, a text or a number, but has {sorted(row)}"
        )
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise LossyValueError(
            f"`pattern` in {where} has to be a regular expression, but is {pattern!r}: {error}"
        ) from error
    stated = str(answer).rpartition("####")[2]
    number = final_number(stated) if _NUMBER.fullmatch(stated) and not pattern else None
    if not (wanted := number or normal(stated)):
        raise LossyValueError(f"`answer` in {where} has to say something, but is {answer!r}")
    return Example(prompt, wanted)


def of_file(data: str) -> Task:
    """Return a file's problems, or its prompts where no row has an answer."""
    return (Problems if any("answer" in row for row in rows_of(data)) else Prompts)(data)
