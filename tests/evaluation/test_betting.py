"""A bound fails as seldom as it says; choices among settings inherit it.

Repeats have fixed seeds. A rate of at most 5 % is given three standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.calibration import bound, certify, select
from tests.nightly import nightly

REPEATS = 1000
MOST = 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPEATS)

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Losses ``(n, m)`` of m settings on n problems."""

LIMIT = 0.01


def answers_law(mean: float, differ: float) -> Draw:
    """Return right-or-wrong answers, of which a share ``differ`` differs, with that mean loss."""
    return lambda rng, n: rng.choice([1.0, -1.0, 0.0], (n, 1), p=[(differ + mean) / 2, (differ - mean) / 2, 1 - differ])


def heavy_law(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return losses that are mostly small gains, and seldom a whole loss, with the mean of the limit."""
    rare = rng.random((n, 1)) < 0.02
    return np.where(rare, 1.0, (LIMIT - 0.02) / 0.98)


def path_law(means: tuple[float, ...], differ: float = 0.1) -> Draw:
    """Return settings with these means whose losses on a problem depend on each other."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        u = rng.random((n, 1))
        lost = (differ + np.array(means)) / 2
        return np.where(u < lost, 1.0, np.where(u > 1 - (differ - np.array(means)) / 2, -1.0, 0.0))

    return draw


LAWS: Mapping[str, tuple[Draw, int]] = {
    "at the limit, 3 % differ": (answers_law(LIMIT, 0.03), 0),
    "at the limit, nothing gained": (answers_law(LIMIT, LIMIT), 0),
    "heavy-tailed, at the limit": (heavy_law, 0),
    "continuous, just above": (lambda rng, n: np.clip(rng.normal(0.0105, 0.3, (n, 1)), -1, 1), 0),
    "a path that rises": (path_law((-0.02, 0.0, 0.0101, 0.05)), 2),
    "a path that rises and falls": (path_law((-0.02, 0.0101, 0.0, 0.03)), 1),
}
"""Laws of losses, and the first setting of each that must not be certified."""


def wrongly_certified(draw: Draw, first_bad: int, problems: int, repeats: int, seed: int = 0) -> float:
    """Return in what share of the repeats a setting is certified whose loss is at the limit or above."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(repeats):
        last = select(draw(rng, problems), LIMIT)
        wrong += last is not None and last >= first_bad
    return wrong / repeats


@pytest.mark.parametrize("name", nightly(LAWS, but=[*LAWS][::2]))
def test_a_setting_that_loses_too_much_is_seldom_certified(name: str):
    draw, first_bad = LAWS[name]
    assert wrongly_certified(draw, first_bad, 1500, REPEATS) <= MOST


@pytest.mark.parametrize("mean", [-0.2, 0.0, 0.3])
def test_a_bound_is_seldom_below_the_mean_at_any_time(mean: float):
    """Whoever looks after every loss believes the least bound so far, which counts here."""
    rng = np.random.default_rng(1)
    losses = np.where(rng.random((400, 100, 1)) < (1 + mean) / 2, 1.0, -1.0)
    wrong = sum(select(own, mean, 0.9) is not None for own in losses)
    assert wrong / 400 <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 400)


def test_a_bound_is_the_limit_at_which_a_setting_is_certified():
    rng = np.random.default_rng(2)
    losses = rng.choice([0.0, 1.0, -1.0], 300, p=[0.9, 0.05, 0.05])
    upper = bound(losses)
    for limit, certified in ((upper + 1e-6, 0), (upper - 1e-6, None)):
        assert select(losses[:, None], limit) == certified
    assert bound(losses, 0.99) > upper > losses.mean()
    assert bound([]) == 1
    assert bound([1.0] * 50) == 1
    assert bound([-1.0] * 500) < -0.9


def test_so_many_problems_certify_a_setting_without_loss_as_the_guide_says():
    for limit, n in ((0.05, 109), (0.01, 553)):
        assert [bound(np.zeros(count)) <= limit for count in (n - 1, n)] == [False, True]


def test_settings_are_tested_in_order_up_to_the_first_that_fails():
    fine, bad = np.zeros(1000), np.ones(1000)
    assert select(np.stack([fine, fine, bad, fine], 1), 0.01) == 1
    assert select(np.stack([bad, fine], 1), 0.01) is None
    assert select(np.stack([fine], 1), 0.01) == 0
    assert select(np.zeros((10, 2)), 0.01) is None, "too few problems"


def test_families_share_the_risk_and_hand_it_on():
    fine, bad = np.zeros(5000), np.ones(5000)
    found = certify({"a": [fine, fine], "b": [fine, bad], "c": [fine]}, 0.01, 0.97)
    assert [len(found[name]) for name in "abc"] == [2, 1, 1]
    assert [found[name][0][1] for name in "abc"] == pytest.approx([0.99, 0.98, 0.99])


def test_families_err_seldom_together():
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(400):
        both = [[answers_law(0.01, 0.01)(rng, 1500)[:, 0]] for _ in range(2)]
        wrong += any(certify(dict(enumerate(both)), LIMIT).values())
    assert wrong / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bound([0.0, 1.5]), r"`losses`.*\[-1, 1\].*1.5"),
        (lambda: bound([math.nan]), "`losses`.*nan"),
        (lambda: bound(np.zeros((2, 2))), r"`losses`.*\(2, 2\)"),
        (lambda: bound([0.0], 1.0), "`confidence`.*1.0"),
        (lambda: select(np.zeros(3), 0.01), r"`losses`.*\(problems, settings\)"),
        (lambda: select(np.zeros((0, 3)), 0.01), r"`losses`.*one or more of each.*\(0, 3\); measure"),
        (lambda: select(np.zeros((3, 0)), 0.01), r"`losses`.*one or more of each.*\(3, 0\); measure"),
        (lambda: select(np.zeros((3, 1)), 1), "`max_loss`.*1"),
        (lambda: select(np.zeros((3, 1)), 0.01, "95"), "`confidence`.*'95'"),
    ],
)
def test_what_can_t_be_tested_is_refused(call, message: str):
    with pytest.raises(LossyValueError, match=message):
        call()
