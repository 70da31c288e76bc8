"""A watch keeps quiet over texts like the calibration's, and warns of others, once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hf_lossy_assist import LossyStats, LossyValueError
from hf_lossy_assist.calibration import Watch


def alarms(usual: np.ndarray, today: np.ndarray, seed: int = 0) -> list[str]:
    warned: list[str] = []
    watch = Watch({"mean_accepted": usual, "lossy_share": usual[::-1] / 5}, 0.99, warned.append, seed)
    rng = np.random.default_rng(seed)
    for kept in today:
        watch.add({"mean_accepted": kept, "lossy_share": rng.choice(usual) / 5})
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
    assert "their mean_accepted differs from the calibration's" in warned[0]


def test_more_lossy_texts_are_noticed_where_as_many_tokens_are_kept():
    rng, warned = np.random.default_rng(2), []
    watch = Watch({"mean_accepted": rng.normal(3, 1, 300), "lossy_share": rng.uniform(0, 0.1, 300)}, warn=warned.append)
    for _ in range(100):
        watch.add({"mean_accepted": rng.normal(3, 1), "lossy_share": rng.uniform(0.05, 0.15)})
    assert "their lossy_share differs" in warned[0]


def test_statistics_count_row_by_row():
    row = LossyStats(rounds=2, accepted=6, accepted_lossy=1)
    watch = Watch({"mean_accepted": [1.0, 2.0, 3.0], "lossy_share": [0.0, 0.1]})
    watch.add(LossyStats(rounds=4, accepted=12, rows=(row, row)))
    assert watch.texts == 2
    watch.add(row)
    assert watch.texts == 3


def test_too_little_to_compare_with_is_refused():
    for usual in ({}, {"mean_accepted": [1.0]}):
        with pytest.raises(LossyValueError, match="`usual`"):
            Watch(usual)
