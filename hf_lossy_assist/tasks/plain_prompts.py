"""Prompts without a right answer."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import LossyValueError
from ..store.reading import kind_of, read_text
from ..values import from_json
from .task import Example, Task
from .task_data import prompt_of, read_jsonl, share


class Prompts(Task):
    """Texts to continue: for labels that need no answer, such as SPRINTER's.

    A response is its own answer; its score is ROUGE-L against the reference mode's text. By a hash, one prompt in ten
    is validation and one in ten is test.

    Parameters
    ----------
    data
        A text file with one prompt per line, a JSONL file whose rows have a ``prompt``, ``question`` or ``turns``, or a
        JSON file with a list of such rows or of texts; each also gzipped.
    split
        Puts all prompts into one split.
    category
        Keeps rows of a JSONL file with this ``category``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "prompts.txt"
    >>> _ = path.write_text("Once upon a time\\nOne day\\nThere was a dog\\n")
    >>> task = Prompts(data=str(path))
    >>> sum(len(task.examples(split, 9)) for split in task.splits)
    3
    """

    name = "prompts"

    def __init__(self, data: str, split: str | None = None, category: str | None = None) -> None:
        if split is not None:
            self.check_split(split)
            self.splits = (split,)
        self._by_split: dict[str, list[Example]] = {name: [] for name in self.splits}
        for text in dict.fromkeys(_texts(data, category)):
            place = share(text)
            by_hash = "test" if place < 0.1 else "validation" if place < 0.2 else "train"
            self._by_split[split or by_hash].append(Example(text, ""))

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return self._by_split[split][:n]

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


def _texts(data: str, category: str | None) -> list[str]:
    kind = kind_of(Path(data))
    if kind == ".jsonl":
        rows = read_jsonl(data, ())
        texts = [prompt_of(row) for row in rows if category in (None, row.get("category"), row.get("subject"))]
        if not texts:
            raise LossyValueError(f"`data` ({data}) has no rows of the category {category!r}")
    elif kind == ".json":
        rows = from_json(read_text(data, "data"), f"`data` ({data})")
        texts = [prompt_of(row) if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else []
    else:
        texts = [line for line in read_text(data, "data").splitlines() if line.strip()]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise LossyValueError(f"`data` has to hold one prompt per line, but {data!r} has a line without, or none")
    return texts
