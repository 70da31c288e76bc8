"""Labels by the target's likelihood, against whole forwards without caches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hf_lossy_assist.models.reading import CachedText
from hf_lossy_assist.training.choice import DraftArgmax, Greedy, GumbelMax
from hf_lossy_assist.training.self_labels import SelfSearches, likelihood_changes
from tests.tiny_models import ARCHITECTURES
from tests.training import reference
from tests.training.parts import Checksum, Parts, tiny_parts


def labels(parts: Parts, slots: int = 2, horizon: int = 4, most_lost: float = 0.2) -> SelfSearches:
    draft = DraftArgmax(parts.draft)
    return SelfSearches(parts.target, draft, parts.limits(), Greedy(), slots, horizon, most_lost)


def mean_likelihood(model, before: list[int], after: list[int]) -> float:
    """Return the mean of log p over ``after``, one forward without a cache."""
    with torch.no_grad():
        logp = model(input_ids=torch.tensor([before + after]), use_cache=False).logits[0].log_softmax(-1)
    return sum(logp[len(before) + i - 1, y].item() for i, y in enumerate(after)) / len(after) if after else math.nan


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_labels_are_those_of_whole_forwards(architecture):
    parts = tiny_parts(architecture, seed=3, noise=0.2, task=Checksum(5))
    prompts, wanted, responses = parts.prompts(5), [], []
    for prompt in prompts:
        given = list(prompt.tokens)
        response = reference.generate(parts.target, given, parts.max_new_tokens)
        guesses = reference.choices(parts.draft, given, response)
        responses.append(response)
        for t in (t for t in range(len(response)) if response[t] != guesses[t]):
            own, other = (
                mean_likelihood(parts.target, [*given, *response[:t], token], response[t + 1 : t + 5])
                for token in (response[t], guesses[t])
            )
            wanted.append((prompt.id, t, response[t], guesses[t], other - own))
    losses = sorted(-change for *_, change in wanted if not math.isnan(change))
    most_lost = max(0, sum(losses[len(losses) // 2 - 1 : len(losses) // 2 + 1]) / 2)  # half of the mismatches matter
    found = {one.prompt.id: one.found for one in labels(parts, most_lost=most_lost).run(prompts)}
    for prompt, response in zip(prompts, responses, strict=True):
        assert list(found[prompt.id].first) == list(found[prompt.id].last) == response
    got = [(id, m.index, m.target_token, m.draft_token, m.important) for id in found for m in found[id].mismatches]
    assert sorted(got) == [(*key, not change >= -most_lost) for *key, change in wanted]
    assert {important for *_, important in got} == {True, False}


def test_changes_in_nats():
    parts = tiny_parts(noise=0.2)
    prompt, response, others = (3, 4, 5), (6, 7, 8, 9), (10, 7, 11, 12)
    [first, third, last] = likelihood_changes(parts.target, prompt, response, [0, 2, 3], others, 2, CachedText())
    rest = [mean_likelihood(parts.target, [3, 4, 5, token], [7, 8]) for token in (10, 6)]
    assert first == pytest.approx(rest[0] - rest[1], abs=1e-5)
    rest = [mean_likelihood(parts.target, [3, 4, 5, 6, 7, token], [9]) for token in (11, 8)]
    assert third == pytest.approx(rest[0] - rest[1], abs=1e-5)
    assert math.isnan(last)


def test_the_batch_changes_nothing():
    parts = tiny_parts(noise=0.2)
    prompts = parts.prompts(5)
    alone, together = (sorted(labels(parts, n).run(prompts), key=lambda one: one.prompt.id) for n in (1, 3))
    assert [one.found for one in alone] == [one.found for one in together]
    assert [vars(one.cost) for one in alone] == [vars(one.cost) for one in together]
    for one in alone:
        ends = [m.index + 1 + min(4, len(one.found.first) - m.index - 1) - m.index for m in one.found.mismatches]
        written, judged = len(one.found.first), len(one.found.first) + 1 if ends else 0
        assert one.cost.target_tokens == len(one.prompt.tokens) - 1 + written + judged + sum(ends)


def test_a_draft_that_is_the_target_draws_the_same_tokens():
    parts = tiny_parts(noise=0.0)
    draws = GumbelMax(seed=0)
    same = replace(labels(parts), choice=draws, draft=DraftArgmax(parts.target, draws))
    assert [len(one.found.mismatches) for one in same.run(parts.prompts(3))] == [0] * 3
    other = replace(same, draft=DraftArgmax(tiny_parts(noise=0.2).draft, draws))
    assert any(one.found.mismatches for one in other.run(parts.prompts(3)))
