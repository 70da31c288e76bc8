"""Counting rounds."""

from __future__ import annotations

import pytest

from hf_lossy_assist.messages import RowDecision
from hf_lossy_assist.stats import StatsRecorder


def test_rounds_add_up_also_where_stopping_cuts_one_short():
    recorder = StatsRecorder(lossless=False)

    def add(drafted: int, accepted: int, committed: int, lossless: list[bool], kept_by: dict[str, list[bool]]) -> None:
        recorder.rows[0].add(RowDecision(0, accepted, [], lossless, kept_by), drafted, committed, None)

    # drafted, accepted, committed: a rejection; a complete draft; cut inside the kept tokens; cut at the correction
    add(4, 2, 3, [True, False, False, False], {"a": [True, False, False, False], "b": [False, True] * 2})
    add(3, 3, 4, [True] * 3, {"a": [True] * 3, "b": [False] * 3})
    add(4, 4, 2, [True, False, True, True], {"a": [True] * 4, "b": [False] * 4})
    add(0, 0, 1, [], {})
    stats = recorder.finish()
    assert (stats.rounds, stats.drafted, stats.accepted, stats.accepted_lossy) == (4, 11, 7, 2)
    assert (stats.corrected, stats.bonus) == (1, 2)
    assert stats.accepted_histogram == (1, 0, 2, 1)
    assert stats.accepted_by == {"a": 6, "b": 1}
    assert stats.trace == (
        *("accepted", "accepted_lossy", "corrected"),
        *("accepted", "accepted", "accepted", "bonus"),
        *("accepted", "accepted_lossy"),
        "bonus",
    )
    assert stats.mean_accepted == pytest.approx(7 / 4)
    assert stats.tokens_per_round == pytest.approx(10 / 4)
    assert stats.acceptance_rate == pytest.approx(7 / 11)


def test_nothing_counted_divides_nothing():
    stats = StatsRecorder(lossless=True).finish()
    assert stats.mean_accepted == stats.tokens_per_round == stats.acceptance_rate == 0
