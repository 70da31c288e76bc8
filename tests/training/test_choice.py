"""The Gumbel-max draws: their numbers, their law, and that they depend on nothing but seed and prefix."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.training.choice import Choice, GumbelMax, gumbel

MASK = (1 << 64) - 1


def splitmix(state: int) -> int:
    """Return what SplitMix64 makes of a state (Steele, Lea and Flood 2014)."""
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("context", [0, 1, 12345, 1 << 63, MASK])
def test_noise_is_splitmix(context):
    noise = gumbel([context], 40)[0]
    for i in range(40):
        bits = splitmix((context + (i + 1) * 0x9E3779B97F4A7C15) & MASK) >> 11
        uniform = (bits + 0.5) / (1 << 53)
        assert noise[i].item() == pytest.approx(-math.log(-math.log1p(-uniform)), rel=1e-12)


def test_noise_is_gumbel():
    choice = GumbelMax(seed=3)
    noise = gumbel([choice.context([i, i + 1]) for i in range(200)], 500).flatten()
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > 0.001
    # One more token, one other token and another seed give noise that has nothing to do with the first.
    first = gumbel([choice.context([1, 2])], 5000)[0]
    for other in (choice.context([1, 2, 3]), choice.context([2, 1]), GumbelMax(4).context([1, 2])):
        correlation = torch.corrcoef(torch.stack([first, gumbel([other], 5000)[0]]))[0, 1]
        assert abs(correlation) < 4 / math.sqrt(5000)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_follow_the_law(temperature):
    law = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    expected = (law.double().log() / temperature).softmax(-1)
    draws = 20_000
    choice = GumbelMax(seed=0, temperature=temperature)
    contexts = [choice.context([i]) for i in range(draws)]
    counts = torch.bincount(torch.tensor(choice.choose(law.log().expand(draws, -1), contexts)), minlength=6)
    assert stats.chisquare(counts.numpy(), (draws * expected / expected.sum()).numpy()).pvalue > 0.001


def test_draws_do_not_depend_on_the_batch():
    choice = GumbelMax(seed=1, temperature=0.8)
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    contexts = [choice.context([i, 7]) for i in range(9)]
    together = choice.choose(logits, contexts)
    assert together == [choice.choose(row[None], [context])[0] for row, context in zip(logits, contexts, strict=True)]
    assert together != GumbelMax(seed=2, temperature=0.8).choose(
        logits, [GumbelMax(2).context([i, 7]) for i in range(9)]
    )


def test_the_likeliest_token_is_the_first_of_equals():
    assert Choice().choose(torch.tensor([[1.0, 3.0, 3.0]]), [0]) == [1]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_has_to_be_positive(temperature):
    with pytest.raises(LossyValueError, match="`temperature`"):
        GumbelMax(0, temperature)
