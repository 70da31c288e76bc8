"""Some dozens of random calls: equal to plain ``generate()``, true to their rule's promises, or refused by name."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.trial.calls import Call

PER_TEST = 40


@pytest.mark.parametrize("start", range(0, 80, PER_TEST))
def test_calls(start: int):
    outcomes = Counter(Call.draw(0, number).check() for number in range(start, start + PER_TEST))
    assert outcomes["equal to plain"] > PER_TEST / 8
    assert outcomes["keeps its promises"] > PER_TEST / 8
