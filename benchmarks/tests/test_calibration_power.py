"""Certificates on real answers are wrong as seldom as they say."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks.calibration_power import LIMITS, certified_shares
from benchmarks.outcome_matrix import by_rule, outcomes
from hf_lossy_assist.calibration import select

FILES = sorted((Path(benchmarks.__file__).parent / "calibration").glob("*.csv"))
REPEATS = 100


def losses_of(file: Path) -> np.ndarray:
    reference, *others = outcomes(file)[1].values()
    return reference[:, None] - np.stack(others, 1)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_settings_that_lose_too_much_are_seldom_certified_on_real_answers(file: Path):
    losses = losses_of(file)
    true = losses.mean(0)
    for limit in true[true > 0]:  # a setting that loses just as much as is allowed is the hardest
        shares = certified_shares(losses, limit, 500, REPEATS)
        assert shares[:-1][true >= limit].max() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPEATS)
    shares = certified_shares(losses, LIMITS[-1] / 100, 500, REPEATS)
    assert shares[:-1].max() > 0.5, "what loses less than the last limit is certified"


def test_shares_are_those_of_select():
    losses = losses_of(FILES[0])[:, :3]
    rng = np.random.default_rng(0)
    drawn = [losses[rng.integers(len(losses), size=80)] for _ in range(40)]
    certified = [[select(own[:, [i]], 0.03) is not None for i in range(3)] for own in drawn]
    assert certified_shares(losses, 0.03, 80, 40)[:3].tolist() == np.mean(certified, 0).tolist()


def test_rules_are_told_from_their_settings():
    assert by_rule(["judge:threshold=0.5", "judge:threshold=0.9", "top-K K=2", "judge τ=0.1"]) == {
        "judge": ["judge:threshold=0.5", "judge:threshold=0.9", "judge τ=0.1"], "top-K": ["top-K K=2"],
    }  # fmt: skip
