"""Overlap of a text's wording with references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import LossyUnsupportedError


def rouge(text: str, references: Sequence[str], kind: str = "rougeL") -> float:
    """Return the ROUGE F-measure of a text against its nearest reference.

    Examples
    --------
    >>> round(rouge("the cat sat", ["the cat sat down here", "no"]), 2)
    0.75
    """
    return max(_scorer(kind).score(reference, text)[kind].fmeasure for reference in references)


@cache
def _scorer(kind: str) -> Any:
    return _module("rouge_score.rouge_scorer", "ROUGE needs the package rouge-score").RougeScorer([kind])


def _sacrebleu() -> Any:
    return _module("sacrebleu", "BLEU and chrF need the package sacrebleu")


def _module(name: str, need: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise LossyUnsupportedError(f"{need}; install it with `pip install 'hf-lossy-assist[bench]'`") from error


METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "rougeL": rouge,
    "rouge1": lambda text, references: rouge(text, references, "rouge1"),
    "rouge2": lambda text, references: rouge(text, references, "rouge2"),
    "bleu": lambda text, references: _sacrebleu().sentence_bleu(text, list(references)).score / 100,
    "chrf": lambda text, references: _sacrebleu().sentence_chrf(text, list(references)).score / 100,
}
"""Measures of a text against its references, from 0 to 1; SacreBLEU's are of sentences."""
