"""The share of refused tokens that a rule keeps, from texts whose acceptance is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.prices import price, table
from hf_lossy_assist.evaluation.answers import Answer

ROOT = Path(__file__).parents[2]


def answers(mode, alpha, right, gamma, seed, n=300, rounds=60):
    """Simulate rounds: each drafted token is kept with probability ``alpha`` after those before it."""
    rng = np.random.default_rng(seed)
    kept = (rng.random((n, rounds, gamma)) < alpha).cumprod(-1).sum((1, 2))
    scores = rng.random(n) < right
    return {
        i: Answer(mode, i, float(scores[i]), int(kept[i] + rounds), rounds, int(kept[i]), None, "") for i in range(n)
    }


@pytest.mark.parametrize("gamma", [2, 5, 16])
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_a_known_share_is_found(share, gamma):
    lossless = answers("lossless", 0.9, 0.6, gamma, seed=1)
    own = answers("rule", 0.9 + share * 0.1, 0.5, gamma, seed=2)
    one = price(own, lossless, gamma)
    assert one.share[1] < share < one.share[2]
    assert abs(one.share[0] - share) < 0.05
    points = 100 * np.mean([own[i].score - lossless[i].score for i in own])
    assert one.price[0] == pytest.approx(points / one.share[0])


def test_lost_answers_are_counted_per_token_that_was_kept():
    rng = np.random.default_rng(0)
    kept, before = rng.poisson(6, size=5000), rng.random(5000) < 0.7
    right = rng.random(5000) < 0.97**kept  # a kept token loses 3 of 100 answers that are still right

    def made(mode, scores, lossy):
        tokens = 100 if mode == "lossless" else 120
        return {
            i: Answer(mode, i, float(x), tokens, 50, tokens - 50, None, "", lossy=int(k))
            for i, (x, k) in enumerate(zip(scores, lossy, strict=True))
        }

    lossless, own = made("lossless", before, 0 * kept), made("rule", right, kept)
    lost = price(own, lossless, 5).lost
    assert lost[0] == pytest.approx(100 * np.sum(before & ~right) / np.sum(kept[before]))
    assert lost[1] < 100 * (1 - np.mean(0.97**kept)) / 6 < lost[2]
    assert lost[2] - lost[1] < 0.5
    assert price(made("rule", before, 0 * kept), lossless, 5).lost is None


def test_only_common_problems_count():
    lossless, own = (answers(x, a, 0.5, 5, seed=i) for i, (x, a) in enumerate((("lossless", 0.9), ("rule", 0.95))))
    few = {i: own[i] for i in range(20)}
    assert price(few, lossless, 5) == price(few, {i: lossless[i] for i in range(20)}, 5)


def test_the_page_shows_the_kept_answers():
    assert table(ROOT / "benchmarks" / "qwen-coder" / "gsm8k") in (ROOT / "docs/results/cpu.md").read_text(
        encoding="utf-8"
    )
