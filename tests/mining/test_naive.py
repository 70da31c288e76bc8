"""The search that the reuse is measured against."""

from __future__ import annotations

import pytest

from hf_lossy_assist.mining.choice import Greedy, GumbelMax
from hf_lossy_assist.mining.naive import NaiveSearch, compare
from tests.mining.parts import tiny_parts


@pytest.mark.parametrize("choice", [Greedy(), GumbelMax(0, 0.8)], ids=lambda choice: type(choice).__name__)
def test_both_ways_find_the_same_and_the_naive_one_reads_more(choice):
    parts = tiny_parts(seed=3)
    naive = NaiveSearch(parts.target, parts.draft, parts.limits(), choice, parts.task, parts.decode)
    plan = parts.searches(slots=2, choice=choice)
    prompts = parts.prompts(3)
    found = compare(plan, naive, prompts)
    assert (found.prompts, found.different) == (3, 0)
    assert found.mismatches == sum(len(one.found.mismatches) for one in plan.run(prompts)) > 0
    assert found.naive_tokens > found.tokens > 0
    assert min(found.naive_seconds, found.seconds) > 0


def test_the_naive_search_counts_every_token_it_reads():
    parts = tiny_parts(seed=3)
    (prompt,) = parts.prompts(1)
    naive = NaiveSearch(parts.target, parts.draft, parts.limits(), Greedy(), parts.task, parts.decode)
    read = []
    forward = parts.target.forward

    def counting(*args, **kwargs):
        read.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    parts.target.forward = counting
    (searched,) = naive.run([prompt])
    assert searched.counts.target_tokens == sum(read)
