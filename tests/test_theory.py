"""Closed forms against simulations, whose means lie within four standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyValueError, theory

DRAWS = 200_000
RUNS = 25_000
RATES = [(0.9, 0.3), (0.5, 0.5), (0.97, 0.0), (0.0, 0.4), (1.0, 0.6), (0.3, 0.9)]


def random_distributions(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(7, 0.6), size=2)
    if seed % 2:  # a token that a processor forbids the target, and one that the draft never proposes
        p[2], q[4] = 0, 0
    return p / p.sum(), q / q.sum()


def assert_mean(samples: np.ndarray, expected: float) -> None:
    """Compare within four standard errors."""
    assert abs(samples.mean() - expected) <= 4 * samples.std() / np.sqrt(len(samples)) + 1e-9


# ---------------------------------------------------------------------------------------------------------- acceptance


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.8])
def test_acceptance_against_simulation(beta: float, seed: int):
    """By the rules as the papers state them, one drafted token at a time."""
    p, q = random_distributions(seed)
    rng = np.random.default_rng(seed)
    x, u = rng.choice(len(q), DRAWS, p=q), rng.random(DRAWS)
    assert_mean((u <= p[x] / q[x]).astype(float), theory.lossless_acceptance(p, q))
    kept = (p[x] / q[x] >= np.maximum(u - beta * (1 - p.max()), 0)) & (p[x] > 0)
    assert_mean(kept.astype(float), theory.ears_acceptance(p, q, beta))


def test_kinds_and_shapes():
    pairs = [random_distributions(seed) for seed in range(6)]
    p, q = (np.stack(side).reshape(3, 2, 7) for side in zip(*pairs, strict=True))
    each = [theory.ears_acceptance(*pair, 0.3) for pair in pairs]
    assert all(isinstance(value, float) for value in each)
    assert isinstance(theory.ears_acceptance(p, q, 0.3), np.ndarray)
    assert theory.ears_acceptance(p, q, 0.3).ravel() == pytest.approx(each)
    tensor = theory.ears_acceptance(torch.tensor(p, dtype=torch.float32), torch.tensor(q), 0.3)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.flatten().numpy() == pytest.approx(each, abs=1e-6)
    assert theory.lossless_acceptance(p, q[0, 0]).shape == (3, 2), "distributions broadcast"
    assert isinstance(theory.lossless_acceptance(p[0, 0].tolist(), q[0, 0].tolist()), torch.Tensor)


HALVES = [0.5, 0.5]
NO_DISTRIBUTIONS = {
    "p": ([0.5, 0.4], [float("nan"), 0.5], [], 1.0, "half", [True, False]),
    "q": ([1.5, -0.5], [0.5, 0.25, 0.25], [1.0], np.full((3, 4, 2), 0.5)),
}


@pytest.mark.parametrize(("name", "wrong"), [(name, x) for name, every in NO_DISTRIBUTIONS.items() for x in every])
def test_what_is_no_distribution_is_refused(name: str, wrong: Any):
    given = {"p": np.full((2, 4, 2), 0.5) if np.ndim(wrong) == 3 else HALVES, "q": HALVES, name: wrong}
    with pytest.raises(LossyValueError, match=f"`{name}`"):
        theory.lossless_acceptance(**given)


# -------------------------------------------------------------------------------------------------------------- rounds


@pytest.mark.parametrize("gamma", [0, 1, 4, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.85, 1.0])
def test_tokens_of_a_round_against_simulation(alpha: float, gamma: int):
    kept = np.random.default_rng(gamma).random((DRAWS, gamma)) < alpha
    tokens = kept.cumprod(axis=1).sum(axis=1) + 1
    assert_mean(tokens, theory.expected_tokens_per_round(alpha, gamma))


def test_arrays_of_alphas_and_the_limit_at_one():
    alphas = np.array([[0.0, 0.5], [1 - 1e-13, 1.0]])
    values = theory.expected_tokens_per_round(alphas, 9)
    assert values == pytest.approx(np.array([[1, 2 - 2**-9], [10, 10]]))
    assert torch.equal(theory.expected_tokens_per_round(torch.tensor(alphas), 9), torch.tensor(values))
    assert isinstance(theory.expected_tokens_per_round(np.float64(0.5), 9), float)


# ------------------------------------------------------------------------------------------------------------ SPRINTER


@pytest.mark.parametrize("r", [0, 1, 5, 12])
@pytest.mark.parametrize(("tpr", "fpr"), RATES)
def test_runs_against_simulation(tpr: float, fpr: float, r: int):
    draws = np.random.default_rng(r).random((RUNS, 150))
    lengths = (draws < np.where(np.arange(150) < r, tpr, fpr)).cumprod(axis=1).sum(axis=1)
    assert_mean(lengths, theory.sprinter_expected_run_length(tpr, fpr, r))
    assert_mean(0.02 * (lengths + 1), theory.sprinter_stopping_time(tpr, fpr, r, 0.02))
    for bound in (1, 3, 20):
        assert_mean(np.minimum(lengths, bound), theory.sprinter_expected_run_length(tpr, fpr, r, bound))


def sprinter_texts(p, q, tpr: float, fpr: float, rng):
    """Return tokens by algorithm 2."""
    x, u = rng.choice(len(q), DRAWS, p=q), rng.random((3, DRAWS))
    committed = u[0] < np.where(q <= p, tpr, fpr)[x]
    kept = committed | (u[1] <= p[x] / q[x])
    rest = np.maximum(p - q, 0)
    corrected = np.searchsorted(np.cumsum(rest / rest.sum()), u[2])
    return np.where(kept, x, corrected.clip(max=len(p) - 1))


@pytest.mark.parametrize(("tpr", "fpr"), [(0.9, 0.3), (1.0, 0.0), (0.4, 1.0)])
@pytest.mark.parametrize("seed", range(3))
def test_sprinter_s_tokens_have_the_law_of_theorem_1(tpr: float, fpr: float, seed: int):
    p, q = random_distributions(seed)
    tokens = sprinter_texts(p, q, tpr, fpr, np.random.default_rng(seed))
    for token, share in enumerate((1 - fpr) * p + fpr * q):
        assert_mean((tokens == token).astype(float), share)


def test_limits():
    run_length = theory.sprinter_expected_run_length
    assert run_length(1 - 1e-12, 0.5, 5) == pytest.approx(run_length(1, 0.5, 5)) == 6
    assert run_length(0.5, 1, 3) == run_length(1, 1, 0) == math.inf
    assert theory.sprinter_stopping_time(0.5, 1, 3, 0.1) == math.inf
    assert run_length(0, 1, 3) == 0, "no run gets past the acceptable tokens"
    assert run_length(0.5, 1, 1, max_draft=10) == pytest.approx(0.5 * 10)
    assert run_length(1, 0, 0) == 0
    assert run_length(0.9, 0.5, 5, max_draft=10_000) == pytest.approx(run_length(0.9, 0.5, 5))


def test_arrays_of_rates():
    tpr, fpr = np.linspace(0, 1, 5), np.array([[0.1], [0.5], [1.0]])
    for bound in (None, 9):
        grid = theory.sprinter_expected_run_length(tpr, fpr, 5, bound)
        each = [[theory.sprinter_expected_run_length(float(a), float(b[0]), 5, bound) for a in tpr] for b in fpr]
        assert grid == pytest.approx(np.array(each))
    times = theory.sprinter_stopping_time(tpr, 0.5, 5, 0.1)
    assert times == pytest.approx(0.1 * (theory.sprinter_expected_run_length(tpr, 0.5, 5) + 1))


NAN = float("nan")
REFUSED = [
    (theory.ears_acceptance, {"p": HALVES, "q": HALVES}, [{"beta": x} for x in (-0.1, 1.1, NAN, "0.1", True)]),
    (theory.expected_tokens_per_round, {"alpha": 0.5, "gamma": 4}, [{"alpha": 1.2}, {"gamma": -1}, {"gamma": 2.5}]),
    (
        theory.sprinter_stopping_time, {"tpr": 0.5, "fpr": 0.5, "r": 3, "t_draft": 0.1},
        [{"tpr": 1.1}, {"fpr": -0.1}, {"fpr": np.array([0.5, np.nan])}, {"r": -1}, {"r": 2.0},
         {"t_draft": -1}],
    ),
    (
        theory.sprinter_expected_run_length, {"tpr": 0.5, "fpr": 0.5, "r": 3},
        [{"r": -1, "max_draft": 3}, {"max_draft": 0}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "usual", "wrong"), [(call, usual, wrong) for call, usual, every in REFUSED for wrong in every]
)
def test_arguments_out_of_range_are_refused_by_name(function: Callable[..., Any], usual: dict, wrong: dict):
    with pytest.raises(LossyValueError, match=f"`{next(iter(wrong))}`"):
        function(**usual | wrong)
