"""Reuse in the search: equal labels from fewer tokens that the target reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hf_lossy_assist.mining.prompt_results import Prompt
from tests.mining import reference
from tests.mining.parts import Parts, tiny_parts

Labels = dict[int, list[tuple[int, int, int, bool]]]
"""By prompt, the labels of its mismatches: index, target's token, draft's token, whether it is important."""


@contextmanager
def tokens_read(parts: Parts) -> Iterator[list[int]]:
    """Note how many tokens each forward of the target reads."""
    read: list[int] = []
    handle = parts.target.register_forward_pre_hook(
        lambda module, args, kwargs: read.append((args[0] if args else kwargs["input_ids"]).numel()), with_kwargs=True
    )
    yield read
    handle.remove()


def from_scratch(parts: Parts, prompt: Prompt) -> list[tuple[int, int, int, bool]]:
    found = reference.important_tokens(
        parts.target, parts.draft, list(prompt.tokens), parts.limits().eos, parts.max_new_tokens, parts.answer,
        parts.task.equivalent,
    )  # fmt: skip
    return [] if found is None else found[2]


@pytest.mark.parametrize("slots", [1, 2])
def test_both_ways_find_the_same_and_reuse_reads_less(slots: int):
    parts = tiny_parts(seed=3)
    prompts = parts.prompts(3)
    with tokens_read(parts) as naive:
        wanted: Labels = {prompt.id: from_scratch(parts, prompt) for prompt in prompts}
    with tokens_read(parts) as reusing:
        results = list(parts.searches(slots).run(prompts))
    found: Labels = {
        one.prompt.id: [(m.index, m.target_token, m.draft_token, m.important) for m in one.found.mismatches]
        for one in results
    }
    assert found == wanted
    assert sum(map(len, found.values())) > 0
    assert sum(naive) > 2 * sum(reusing) > 0
    if slots == 1:  # what a prompt is said to have cost
        assert sum(one.counts.target_tokens for one in results) == sum(reusing)
