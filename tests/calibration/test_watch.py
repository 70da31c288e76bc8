"""A watch keeps quiet over texts like the calibration's, and warns of others, once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hf_lossy_assist import LossyStats, LossyValueError
from hf_lossy_assist.calibration import Watch


def alarms(usual: np.ndarray, today: np.ndarray, seed: int = 0) -> list[str]:
    warned: list[str] = []
    watch = Watch(usual, 0.99, warned.append, seed)
    for figure in today:
        watch.add(figure)
    assert watch.alarmed == bool(warned)
    return warned


def test_false_alarms_are_as_seldom_as_it_says():
    """In 300 repeats at 1 %: at most 1 % and three standard errors. Ties, as of short texts, are included."""
    rng, wrong = np.random.default_rng(0), 0
    for seed in range(300):
        wrong += bool(alarms(rng.integers(0, 5, 100), rng.integers(0, 5, 200), seed))
    assert wrong / 300 <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 300)


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_other_texts_are_noticed_soon_and_said_once(shift: float):
    rng = np.random.default_rng(1)
    warned = alarms(rng.normal(3, 1, 300), rng.normal(3 + shift, 1, 200))
    assert len(warned) == 1
    assert "unlike those of the calibration" in warned[0]


def test_statistics_count_row_by_row():
    row = LossyStats(rounds=2, accepted=6)
    watch = Watch([1.0, 2.0, 3.0])
    watch.add(LossyStats(rounds=4, accepted=12, rows=(row, row)))
    assert watch.texts == 2
    watch.add(row)
    assert watch.texts == 3


def test_too_little_to_compare_with_is_refused():
    with pytest.raises(LossyValueError, match="`usual`"):
        Watch([1.0])
