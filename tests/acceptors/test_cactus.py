"""How far Cactus goes from the target's law in one step, measured: about δ, and never beyond ``ln(1 + 2δ)``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist.acceptors import Cactus, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification

P = np.array([0.7, 0.15, 0.08, 0.05, 0.02])
ROUNDS = 60_000


def divergence(p: np.ndarray, delta: float) -> np.ndarray:
    """Return ``KL(h ‖ p)`` where the drafted token has a probability of ``p`` between 0 and 1."""
    h = np.minimum(1, p + np.sqrt(2 * delta * p * (1 - p)))
    return h * np.log(h / p) + np.where(h < 1, (1 - h) * np.log(np.where(h < 1, 1 - h, 1.0) / (1 - p)), 0.0)


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.5, 1.0, 3.0])
def test_the_divergence_of_what_is_verified_against(delta: float):
    """The second order says δ; exactly, it is at most ln(1 + 2δ), and there is a p where it is that."""
    grid = np.linspace(0, 1, 100_001)[1:-1]
    exact = divergence(grid, delta)
    assert exact.max() <= np.log1p(2 * delta) + 1e-9
    assert divergence(np.array(1 / (1 + 2 * delta)), delta) == pytest.approx(np.log1p(2 * delta), abs=1e-5)
    if delta < 0.5:  # the bound that the paper states, and the third order
        assert exact[grid <= 0.5].max() <= delta * (1 + delta)


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("x", [0, 1, 4])
def test_measured_divergence(x: int, delta: float):
    """The output where x is drafted with certainty; a fixed seed, 4.5 standard errors."""
    logits = torch.tensor(P).log().float().expand(ROUNDS, 2, -1)
    verification = Verification(
        torch.full((ROUNDS, 1), x), logits, draft_logits=None, do_sample=True, randomness=Randomness(11)
    )
    decision = decide(Cactus(delta), verification)
    came_out = torch.where(decision.n_accepted > 0, x, decision.next_token)
    law = np.bincount(came_out, minlength=len(P)) / ROUNDS
    ratios = np.log(np.where(law > 0, law / P, 1.0))
    measured = (law * ratios).sum()
    bias = (len(P) - 1) / (2 * ROUNDS)  # of an entropy that is measured
    error = 4.5 * np.sqrt((law * (ratios - measured) ** 2).sum() / ROUNDS) + bias
    assert abs(measured - divergence(P[x], delta)) <= error
    assert measured <= np.log1p(2 * delta) + error
    if P[x] < 0.5:  # the second-order error is (2δ)^1.5 · (2p - 1) / 6√(p(1 - p)), below zero here
        assert measured <= delta + error
