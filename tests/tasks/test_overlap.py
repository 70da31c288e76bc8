"""Overlap of texts with references."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.tasks.overlap import METRICS, rouge


def test_rouge_is_the_f_measure_of_the_longest_common_subsequence():
    # 3 of 4 words in order, of texts of 4 and 6 words.
    assert rouge("the cat sat down", ["the big cat sat there quietly"]) == pytest.approx(0.6)
    assert rouge("a", ["b", "a"]) == 1
    assert METRICS["rouge2"]("the cat sat", ["the cat ran"]) == pytest.approx(0.5)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_sacrebleu_scores_translations(metric):
    measure = METRICS[metric]
    if find_spec("sacrebleu") is None:
        with pytest.raises(LossyUnsupportedError, match="sacrebleu"):
            measure("a", ["a"])
        return
    reference = "The quick brown fox jumps over the dog."
    assert measure(reference, ["Nothing.", reference]) == pytest.approx(1)
    assert 0 < measure("The quick brown fox sits on the dog.", [reference]) < 1
    assert measure("Ganz anders", [reference]) < 0.1
