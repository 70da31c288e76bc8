"""The published ratio, and the gap that does not depend on where logits begin."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist.acceptors import Margin
from hf_lossy_assist.core.messages import Verification


def kept(rule: Margin, logits: list[float]) -> list[bool]:
    """Return which of the tokens the rule keeps where the target has these logits."""
    n = len(logits)
    return rule.keep(Verification(torch.arange(n)[:, None], torch.tensor([[logits] * 2] * n))).squeeze(-1).tolist()


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([10.0, 9.5, 9.4, 1.0], [True, True, False, False]),
        ([10.0, 9.0, 8.0, 1.0], [True, False, False, False]),  # a ratio of exactly theta
        ([1.0, 9.0, 9.9, 10.0], [False, False, True, True]),
        ([10.0, 10.0, 9.9, 1.0], [True, True, False, False]),
        ([-1.0, -10.0, -20.0, -30.0], [True, False, False, False]),  # no ratio says anything here
        ([0.0, -1.0, -2.0, -3.0], [True, False, False, False]),
        ([10.0, float("-inf"), float("-inf"), float("-inf")], [True, False, False, False]),
    ],
)
def test_the_published_ratio(logits: list[float], expected: list[bool]):
    assert kept(Margin(), logits) == expected
    assert kept(Margin(theta=0.9), logits) == expected
    assert kept(Margin(theta=1.0), logits) == [i == logits.index(max(logits)) for i in range(len(logits))]


@pytest.mark.parametrize("shift", [0.0, 50.0, -50.0])
def test_a_gap_is_one_of_probabilities(shift: float):
    """A constant on all logits leaves the law, and what a gap says of it, as it is; the ratio turns round."""
    logits = [x + shift for x in (2.0, 1.5, 0.0)]
    assert kept(Margin(gap=0.75), logits) == [True, True, False]
    assert kept(Margin(gap=0.25), logits) == [True, False, False]
    assert kept(Margin(theta=0.9), logits) == [True, shift > 0, False]
