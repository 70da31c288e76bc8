"""The Gumbel-max draws: their numbers, their law, and that they depend on nothing but seed and prefix."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.mining.choice import Greedy, GumbelMax, gumbel
from tests.mining import reference
from tests.mining.parts import by_prompt, tiny_parts

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
    assert Greedy().choose(torch.tensor([[1.0, 3.0, 3.0]]), [0]) == [1]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_has_to_be_positive(temperature):
    with pytest.raises(LossyValueError, match="`temperature`"):
        GumbelMax(0, temperature)


def draw(model, ids: list[int], room: int, choice: GumbelMax, eos) -> list[int]:
    """Return a continuation drawn token by token, each with a forward of its own."""
    new: list[int] = []
    while len(new) < room and not (new and new[-1] in eos):
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([ids + new]), use_cache=False).logits[0, -1].double()
        noise = gumbel([choice.context(ids + new)], len(scores))[0]
        new.append(int(((scores / choice.temperature).log_softmax(-1) + noise).argmax()))
    return new


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sampled_search_is_deterministic_and_the_printed_one(seed):
    parts = tiny_parts(seed=seed, max_new_tokens=10)
    choice = GumbelMax(seed, 0.9)
    eos = parts.limits().eos
    prompts = parts.prompts(4)
    found = by_prompt(parts, prompts, slots=3, choice=choice)
    assert by_prompt(parts, prompts, slots=1, choice=choice) == found
    assert by_prompt(parts, prompts, slots=3, choice=GumbelMax(seed + 7, 0.9)) != found
    for prompt in prompts:
        wanted = reference.important_tokens(
            parts.target, parts.draft, list(prompt.tokens), eos, parts.max_new_tokens, parts.answer,
            parts.task.equivalent,
            generate=lambda model, ids, room: draw(model, ids, room, choice, eos),
            choices=lambda model, ids, response: [
                draw(model, ids + response[:i], 1, choice, eos)[0] for i in range(len(response))
            ],
        )  # fmt: skip
        one = found[prompt.id]
        assert (one.answer is None) == (wanted is None)
        if wanted is not None:
            assert [(m.index, m.target_token, m.draft_token, m.important) for m in one.mismatches] == wanted[2]
            assert (list(one.first), list(one.last)) == wanted[:2]
