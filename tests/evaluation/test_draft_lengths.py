"""Costs in calls."""

from __future__ import annotations

from hf_lossy_assist import pairs
from hf_lossy_assist.evaluation.draft_lengths import measure
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.evaluation.requests import batches_of


def test_calls_are_those_of_the_rounds():
    pair = pairs.load("arithmetic")
    prompts = batches_of([pair.task.encode(e, pair.tokenizer) for e in pair.task.examples("test", 2)])
    one, four = measure(Models(pair.target, pair.draft), [1, 4], prompts, 160)
    assert one.tokens == four.tokens
    assert one.target_calls > four.target_calls
    # A text of n tokens takes as many rounds as the target has calls, the first of which reads the prompt; the draft
    # reads it in its first call too.
    assert one.target_calls < one.tokens < 2 * (one.target_calls + 2) + 2
    assert 0.5 * one.draft_calls <= one.target_calls <= one.draft_calls + 2
    assert one.seconds > 0 < four.seconds
