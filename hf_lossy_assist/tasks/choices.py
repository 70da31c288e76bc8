"""Questions with lettered choices (MMLU; Hendrycks et al., 2021)."""

from __future__ import annotations

import re
from typing import Any

from ..errors import LossyValueError
from .few_shot import FewShotTest
from .task import Example
from .task_data import Row, read_rows

_LETTERS = "ABCDEFGHIJ"
_STATED = re.compile(r"answer(?:\s+is|\s*:)\W*([A-J])\b", re.IGNORECASE)
_ALONE = re.compile(r"\W*([A-J])(?:[).:,*]|\s*(?:\n|$))")
_CHAT = '{question}\n\nReason step by step, then end your response with "The answer is (X).", where X is a letter.'


class Choices(FewShotTest):
    """Questions whose answer is the letter of one of several choices.

    Parameters
    ----------
    data
        A JSONL file or a data set on the Hub with MMLU's fields: ``question``, ``choices`` (a list) and ``answer`` (a
        letter, or an index from 0).
    shots
        The number of questions at the beginning that become worked examples before each of the others.
    config, hub_split
        Configuration and split of a data set on the Hub.
    category
        Keeps rows with this ``subject`` or ``category``.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "questions.jsonl"
    >>> _ = path.write_text(json.dumps({"question": "Which is even?", "choices": ["one", "two"], "answer": 1}))
    >>> task = Choices(data=str(path))
    >>> [example] = task.examples("test", 1)
    >>> print(example.prompt)
    Question: Which is even?
    A. one
    B. two
    Answer:
    >>> task.correct(example, "Only 2 can be halved. The answer is (B).")
    True
    """

    name = "choices"
    max_new_tokens = 256

    def __init__(
        self,
        data: str = "cais/mmlu",
        shots: int = 0,
        config: str | None = "all",
        hub_split: str = "test",
        category: str | None = None,
    ) -> None:
        rows = read_rows(data, config, hub_split, category)
        super().__init__([_example(row, number) for number, row in enumerate(rows, start=1)], shots)

    def extract_answer(self, text: str) -> str | None:
        """Return the letter stated last, else the one that the text begins with."""
        stated = _STATED.findall(text.split("\nQuestion:")[0])
        alone = _ALONE.match(text)
        return stated[-1].upper() if stated else alone.group(1) if alone else None

    def asked(self, prompt: str) -> str:
        return _CHAT.format(question=prompt.removeprefix("Question: ").removesuffix("\nAnswer:"))

    def answered(self, example: Example) -> str:
        return f"The answer is ({example.answer})."


def _example(row: Row, number: int) -> Example:
    question, choices, answer = (row.get(name) for name in ("question", "choices", "answer"))
    if not isinstance(question, str) or not isinstance(choices, list) or not 2 <= len(choices) <= len(_LETTERS):
        raise LossyValueError(
            f"row {number} of `data` needs a text as `question` and 2 to {len(_LETTERS)} `choices`; it has "
            f"{sorted(row)}"
        )
    letter = _letter(answer)
    if letter not in _LETTERS[: len(choices)]:
        raise LossyValueError(f"`answer` of row {number} of `data` has to be one of its choices, but is {answer!r}")
    lines = [f"{_LETTERS[i]}. {choice}" for i, choice in enumerate(choices)]
    prompt = "\n".join([f"Question: {question.strip()}", *lines, "Answer:"])
    return Example(prompt, letter, f" {letter}")


def _letter(answer: Any) -> str:
    if isinstance(answer, int):
        return _LETTERS[answer] if 0 <= answer < len(_LETTERS) else "?"
    return str(answer).strip().upper() or "?"
