"""Reuse in the search: equal labels from fewer tokens that the target reads."""

from __future__ import annotations

from benchmarks.mining_reuse import compare
from tests.mining.parts import tiny_parts


def test_both_ways_find_the_same_and_the_naive_one_reads_more():
    parts = tiny_parts(seed=3)
    prompts = parts.prompts(3)
    found = compare(parts, prompts, slots=2)
    assert found.different == 0
    assert found.mismatches == sum(len(one.found.mismatches) for one in parts.searches(2).run(prompts)) > 0
    assert found.naive.tokens > 2 * found.reusing.tokens > 0
    assert min(found.naive.seconds, found.reusing.seconds) > 0


def test_the_tokens_that_a_prompt_is_said_to_have_cost_were_read():
    parts = tiny_parts(seed=3)
    prompts = parts.prompts(3)
    found = compare(parts, prompts, slots=1)
    assert sum(one.counts.target_tokens for one in parts.searches(1).run(prompts)) == found.reusing.tokens
