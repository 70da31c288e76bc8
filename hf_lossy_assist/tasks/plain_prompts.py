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
from .task import Example, Row, Task, prompt_of, read_jsonl

_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


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
    max_new_tokens = 1024

    def __init__(self, data: str, category: str | None = None) -> None:
        rows = read_jsonl(data, ("category",))
        named = ("mt_bench" if row["category"] in _MT_BENCH else row["category"] for row in rows)
        self._examples = _in_turn(zip(named, map(prompt_of, rows), strict=True), category, data)


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
