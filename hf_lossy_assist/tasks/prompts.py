"""Prompts of one's own, in a file or a list, with right answers or without."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LossyValueError
from ..store.folder import read_text
from ..values import from_json
from .gsm8k import final_number
from .task import Example, ListedTask, Row, prompt_of, read_jsonl

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKER = re.compile(r"(?:#{4}|\banswer\s*(?:is\b(?!['’])\s*:?|:|=))\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[\s$€£+−-]*\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?\s*%?")


class Prompts(ListedTask):
    """Texts to continue, each once; if they have an ``answer`` each, it is right after normalisation.

    Case, spaces and the marks around an answer do not count. A number is compared with the number that a response gives
    as its answer, as in GSM8K. Of a text that says "answer is", "answer:" or "####", the rest of that line is the
    answer, else all of it. Without answers, responses are only timed, and train heads that need no answer, such as
    SPRINTER's.

    Parameters
    ----------
    data
        A text file with one prompt per line, a JSONL file whose rows have a ``prompt``, ``question`` or ``turns``, or a
        JSON file with a list of such rows or of texts; each also gzipped. Rows may have an ``answer``, and a
        ``pattern``: a regular expression that finds the answer in a response, by its first group if it has one. Its
        last match counts.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "my.jsonl"
    >>> _ = path.write_text('{"prompt": "What is the capital of France?", "answer": "Paris", "pattern": "(Par[a-z]+)"}')
    >>> task = Prompts(str(path))
    >>> task.correct(task.examples("test", 1)[0], "It is Paris, of course.")
    True
    """

    name = "prompts"

    def __init__(self, data: str) -> None:
        rows = rows_of(data)
        self.scored = any("answer" in row for row in rows)
        self._patterns: dict[str, str] = {}
        if self.scored:
            known: dict[str, tuple[Example, str]] = {}
            for i, row in enumerate(rows, 1):
                where = f"row {i} of `data` ({data})"
                one = _example(row, where), row.get("pattern", "")
                if known.setdefault(one[0].prompt, one) != one:
                    raise LossyValueError(f"{where} has to have the answer and the pattern of an earlier row's prompt")
            self._examples = [example for example, _ in known.values()]
            self._patterns = {prompt: pattern for prompt, (_, pattern) in known.items() if pattern}
        else:
            texts = [*map(prompt_of, rows)]
            if wrong := [i for i, text in enumerate(texts) if not isinstance(text, str)]:
                where, found = f"row {wrong[0] + 1} of `data` ({data})", sorted(rows[wrong[0]])
                raise LossyValueError(f"{where} has to have a `prompt`, a text, but has {found}")
            self._examples = [Example(text, "") for text in dict.fromkeys(texts)]
        # Answers that were found by other patterns are others.
        self.scoring = {"patterns": sorted({*self._patterns.values()})} if self._patterns else {}

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


class PromptList(ListedTask):
    """Texts or token ids to continue, without right answers."""

    name = "prompts"
    scored = False
    max_new_tokens = 256

    def __init__(self, prompts: Sequence[str] | Sequence[Sequence[int]]) -> None:
        if not prompts:
            raise LossyValueError("`prompts` has to hold at least one prompt, but is empty")
        self._examples = [Example(prompt, "") for prompt in prompts]

    def extract_answer(self, text: str) -> str | None:
        return None

    def encode(self, example: Example, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return super().encode(example, tokenizer) if isinstance(example.prompt, str) else list(example.prompt)


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


def rows_of(data: str) -> list[Row]:
    """Return a file's rows; a line of text, or a text of a list, is a row with a ``prompt``."""
    kind = Path(data.removesuffix(".gz")).suffix
    if kind == ".jsonl":
        return read_jsonl(data, ())
    text = read_text(data, "data")
    lines = [line for line in re.split(r"\r\n?|\n", text) if line.strip()]  # a prompt may have other breaks
    rows = from_json(text, f"`data` ({data})") if kind == ".json" else lines
    if not isinstance(rows, list) or not rows:
        raise LossyValueError(f"`data` has to hold one prompt per line, or a list of them, but {data!r} holds none")
    return [row if isinstance(row, dict) else {"prompt": row} for row in rows]
