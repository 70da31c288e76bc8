"""Prompts without a right answer: from files of one's own, and from benchmarks of speculative decoding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from ..errors import LossyValueError
from ..store.folder import kind_of, read_text
from ..values import from_json
from .task import Example, Task, prompt_of, read_jsonl, split_of

_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


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
            self._by_split[split or split_of(text, 0.1, 0.2)].append(Example(text, ""))

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


class SpecBench(Prompts):
    """Spec-Bench (Xia et al. 2024, arXiv:2401.07851): 480 prompts in six categories.

    A score is ROUGE-L against the reference mode's text. The categories take turns, so that any number of prompts has
    as many of each. Only the first turn of a conversation is asked.

    Parameters
    ----------
    data
        The published file, ``data/spec_bench/question.jsonl`` of its repository. The categories of MT-bench become one,
        ``mt_bench``, as in the published tables.
    category
        Keeps only this category.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "question.jsonl"
    >>> _ = path.write_text('{"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Shorter!"]}\\n')
    >>> [example.prompt for example in SpecBench(data=str(path), category="mt_bench").examples("test", 9)]
    ['Write a poem.']
    """

    name = "spec-bench"
    splits = ("test",)
    max_new_tokens = 1024

    def __init__(self, data: str, category: str | None = None) -> None:
        rows = read_jsonl(data, ("category",))
        named = ("mt_bench" if row["category"] in _MT_BENCH else row["category"] for row in rows)
        self._by_split = {"test": _in_turn(zip(named, map(prompt_of, rows), strict=True), category, data)}


def _in_turn(rows: Iterable[tuple[Any, Any]], category: str | None, source: str) -> list[Example]:
    """Return prompts so that categories take turns, in the order in which they first appear."""
    found: dict[str, list[Example]] = {}
    for name, text in rows:
        if not isinstance(name, str) or not isinstance(text, str):
            raise LossyValueError(f"`data` ({source}) has to have rows with a `category` and `turns`, but one has not")
        found.setdefault(name, []).append(Example(text, ""))
    if category is not None and category not in found:
        raise LossyValueError(f"`category` has to be one of {sorted(found)} in {source}, but is {category!r}")
    chosen = found.values() if category is None else [found[category]]
    return [example for example in chain.from_iterable(zip_longest(*chosen)) if example is not None]
