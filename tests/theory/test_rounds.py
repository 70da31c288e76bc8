"""Rounds against simulation: 200,000 of them, means within 4 standard errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyValueError, theory
from tests.theory.samples import assert_mean

ROUNDS = 200_000


def simulated_tokens(alpha: float, gamma: int) -> np.ndarray:
    """Tokens of every round: drafted ones up to the first that is not kept, and one more."""
    rng = np.random.default_rng(gamma)
    kept = rng.random((ROUNDS, gamma)) < alpha
    return kept.cumprod(axis=1).sum(axis=1) + 1


@pytest.mark.parametrize("gamma", [0, 1, 4, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.85, 1.0])
def test_tokens_and_speed_against_simulation(alpha: float, gamma: int):
    tokens = simulated_tokens(alpha, gamma)
    assert_mean(tokens, theory.expected_tokens_per_round(alpha, gamma))
    # The same rounds on a clock: draft 3 ms a token, target 20 ms and 1.5 ms a token, head 0.7 ms.
    clock = gamma * 3 + 20 + 1.5 * (gamma + 1) + (0.7 if gamma else 0)
    alone = 20 + 1.5
    speedup = theory.expected_speedup(alpha, gamma, 3, (20, 1.5), 0.7)
    assert_mean(tokens / clock * alone, speedup)
    assert speedup == theory.expected_speedup(alpha, gamma, 3, lambda n: 20 + 1.5 * n, 0.7)


def test_leviathan_s_theorem():
    alpha, gamma, c = 0.7, 6, 0.05
    expected = (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))
    assert theory.expected_speedup(alpha, gamma, c, 1) == pytest.approx(expected)


def test_arrays_of_alphas_and_the_limit_at_one():
    alphas = np.array([[0.0, 0.5], [1 - 1e-13, 1.0]])
    values = theory.expected_tokens_per_round(alphas, 9)
    assert values == pytest.approx(np.array([[1, 2 - 2**-9], [10, 10]]))
    tensor = theory.expected_tokens_per_round(torch.tensor(alphas), 9)
    assert torch.equal(tensor, torch.tensor(values))
    assert isinstance(theory.expected_tokens_per_round(np.float64(0.5), 9), float)


@pytest.mark.parametrize("t_target", [1.0, (0.8, 0.05), lambda n: 1.0 if n <= 8 else 1.6])
@pytest.mark.parametrize("t_head", [0.0, 0.2])
@pytest.mark.parametrize("alpha", [0.0, 0.02, 0.4, 0.8, 0.97, 1.0])
def test_best_gamma_is_the_best(alpha: float, t_head: float, t_target):
    def speedup(gamma: int) -> float:
        return theory.expected_speedup(alpha, gamma, 0.06, t_target, t_head)

    for lowest, highest in [(0, 64), (1, 20), (5, 5)]:
        best = theory.best_gamma(alpha, 0.06, t_target, t_head, lowest=lowest, highest=highest)
        assert lowest <= best <= highest
        assert speedup(best) == pytest.approx(max(speedup(gamma) for gamma in range(lowest, highest + 1)))


def test_best_gamma_says_when_speculation_is_slower():
    assert theory.best_gamma(0.5, t_draft=1.0, t_target=1.0) == 0
    assert theory.best_gamma(0.9, t_draft=0.05, t_target=1.0, t_head=10) == 0
    assert theory.best_gamma(1.0, t_draft=0.05, t_target=1.0) == 64
    assert theory.best_gamma(0.0, t_draft=0.0, t_target=1.0) == 0, "of equals the smallest"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 1.2}, "`alpha`.*1.2"),
        ({"gamma": -1}, "`gamma`.*-1"),
        ({"gamma": 2.5}, "`gamma`.*2.5"),
        ({"t_draft": -1}, "`t_draft`"),
        ({"t_target": 0}, "`t_target`.*> 0"),
        ({"t_target": (1, -1)}, "`t_target`.*-1"),
        ({"t_target": (1, 2, 3)}, "`t_target`"),
        ({"t_target": lambda n: -n}, r"`t_target\(1\)`"),
        ({"t_head": float("nan")}, "`t_head`"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict, message: str):
    given = {"alpha": 0.5, "gamma": 4, "t_draft": 0.1, "t_target": 1.0} | arguments
    with pytest.raises(LossyValueError, match=message):
        theory.expected_speedup(**given)
    if "gamma" not in arguments:
        given.pop("gamma")
        with pytest.raises(LossyValueError, match=message):
            theory.best_gamma(**given)


def test_a_range_of_gammas_has_to_be_one():
    with pytest.raises(LossyValueError, match=r"`lowest`.*5 and 4"):
        theory.best_gamma(0.5, 0.1, 1.0, lowest=5, highest=4)
