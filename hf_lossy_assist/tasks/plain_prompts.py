"""Prompts without a right answer, from a file."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import LossyValueError
from ..store.folder import kind_of, read_text
from ..values import from_json
from .task import Example, Row, Task, prompt_of, read_jsonl


class Prompts(Task):
    """Texts to continue: for labels that need no answer, such as SPRINTER's, and to measure times.

    A response is its own answer; its score is ROUGE-L against the reference mode's text.

    Parameters
    ----------
    data
        A text file with one prompt per line, a JSONL file whose rows have a ``prompt``, ``question`` or ``turns``, or a
        JSON file with a list of such rows or of texts; each also gzipped.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "prompts.txt"
    >>> _ = path.write_text("Once upon a time\\nOne day\\nThere was a dog\\n")
    >>> len(Prompts(data=str(path)).examples("test", 9))
    3
    """

    name = "prompts"
    splits = ("test",)

    def __init__(self, data: str) -> None:
        texts = [*map(prompt_of, rows_of(data))]
        if not all(isinstance(text, str) for text in texts):
            raise LossyValueError(f"`data` has to hold one prompt per line, but {data!r} has a line without")
        self._examples = [Example(text, "") for text in dict.fromkeys(texts)]

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return self._examples[:n]

    def extract_answer(self, text: str) -> str | None:
        return text.strip() or None

    def score(self, example: Example, response: str, own: str) -> float:
        """Return ROUGE-L against ``own``."""
        return 1.0 if response == own else rouge_l(response, own)


def rouge_l(text: str, reference: str) -> float:
    """Return ROUGE-L (Lin, 2004): the F-measure of the words that two texts have in common, in the same order.

    Words are runs of letters from a to z and digits, in any case, as in the package ``rouge-score``.

    Examples
    --------
    >>> rouge_l("The cat sat.", "the cat sat down here")
    0.75
    """
    own, other = (re.findall("[a-z0-9]+", each.lower()) for each in (text, reference))
    longest = [0] * (len(other) + 1)  # of the words so far in common with each beginning of the reference
    for word in own:
        before = longest.copy()
        for i, theirs in enumerate(other, 1):
            longest[i] = before[i - 1] + 1 if word == theirs else max(before[i], longest[i - 1])
    return 2 * longest[-1] / (len(own) + len(other)) if longest[-1] else 0.0


def rows_of(data: str) -> list[Row]:
    """Return a file's rows; a line of text, or a text of a list, is a row with a ``prompt``."""
    kind = kind_of(Path(data))
    if kind == ".jsonl":
        return read_jsonl(data, ())
    text = read_text(data, "data")
    lines = [line for line in text.splitlines() if line.strip()]
    rows = from_json(text, f"`data` ({data})") if kind == ".json" else lines
    if not isinstance(rows, list) or not rows:
        raise LossyValueError(f"`data` has to hold one prompt per line, or a list of them, but {data!r} holds none")
    return [row if isinstance(row, dict) else {"prompt": row} for row in rows]
