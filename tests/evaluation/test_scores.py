"""What answers add up to, worked out by hand: speeds, ratios and rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.result import EvaluationResult, baselines_of

BASELINES = {"plain": ["plain"], "stock": ["stock@3", "stock@5"], "lossless": ["lossless@3", "lossless@5"]}


def timed(mode: str, id: int, seconds: float) -> Answer:
    return Answer(mode, id, None, 10, 4, 6, seconds, "")


def rows(answers, **options):
    return EvaluationResult.of(answers, "plain", BASELINES, **options).modes


ANSWERS = [
    *(timed("plain", i, 1.0) for i in range(2)),
    *(timed("stock@3", i, 0.8) for i in range(2)),
    *(timed("stock@5", i, 0.5) for i in range(2)),
    *(timed("lossless@3", i, 0.9) for i in range(2)),
    *(timed("lossless@5", i, 0.3) for i in range(2)),
]


def test_speeds_and_ratios():
    found = rows(ANSWERS)
    ours = found["lossless@5"]
    assert ours.tokens_per_second == pytest.approx(20 / 0.6)
    for name, ratio in {"plain": 1 / 0.3, "stock": 0.5 / 0.3, "lossless": 1.0}.items():
        assert ours.speed.times[name] == pytest.approx((ratio,) * 3), "both answers are alike"
    assert (ours.score, ours.difference) == (None, 0.0)


def test_ratios_have_an_interval_over_the_calls():
    """40 answers of 10 tokens, which one mode gives in 1 s and the other in 1 or 3: as numpy's bootstrap says."""
    seconds = np.where(np.arange(40) % 4, 1.0, 3.0)
    answers = [timed("plain", i, s) for i, s in enumerate(seconds)] + [timed("lossless@5", i, 1.0) for i in range(40)]
    drawn = np.random.default_rng(1).choice(seconds, (20_000, 40)).mean(1)
    assert rows(answers)["lossless@5"].speed.times["plain"] == pytest.approx(
        (1.5, *np.quantile(drawn, (0.025, 0.975))), abs=0.03
    )
    (whole,) = {rows(answers, batch_size=40)["lossless@5"].speed.times["plain"]}
    assert whole == pytest.approx((1.5,) * 3), "one call of 40 rows has no spread"


def test_baselines_are_of_this_process_and_by_the_target_s_own_law():
    modes = parse_modes("plain,draft,stock@3,lossless@auto,topk,lossless@4")
    assert baselines_of(modes) == {
        "plain": ["plain"],
        "stock": ["stock@3"],
        "lossless": ["lossless@auto", "lossless@4"],
    }
    assert baselines_of([replace(mode, engine="vllm") for mode in modes]) == {"plain": [], "stock": [], "lossless": []}
