"""Labels that cost less: drawn mismatches, and beginnings that prompts share."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from hf_lossy_assist.tasks import Example
from hf_lossy_assist.training.judge_labels import Found, search
from tests.training.parts import Checksum, by_prompt, judge, tiny_parts


def labelled(count: int, most: int, start: float, *, important: bool, more: int = 0) -> Found:
    """Search a text of zeros where the draft says 1 at every odd place; a changed text has ``more`` mismatches."""

    class Zeros(Checksum):
        def answer(self, example, response):
            return "1"

        def keeps_answer(self, example, current_response, new_response):
            return not important

    first = (0,) * (2 * count)
    steps = search(Example("", ""), Zeros(), str, most=most, start=start)
    request = next(steps)
    while True:
        match type(request).__name__:
            case "Continue":
                text = first + (0,) * (2 * more if request.prefix else 0)
                reply = (*request.prefix, *text[len(request.prefix) :])
            case _:
                reply = tuple(i % 2 for i in range(request.start, len(request.response)))
        try:
            request = steps.send(reply)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize(("important", "more"), [(False, 0), (True, 0), (False, 9)])
@pytest.mark.parametrize(("count", "most"), [(17, 4), (12, 4), (5, 5), (3, 8), (40, 1)])
def test_every_mismatch_is_drawn_equally_often_and_weights_make_up_for_the_rest(count, most, important, more):
    starts = 840
    drawn: Counter[int] = Counter()
    for start in range(starts):
        found = labelled(count, most, (start + 0.5) / starts, important=important, more=more).mismatches
        if not more:
            assert len(found) == min(most, count)
            assert sum(one.weight for one in found) == pytest.approx(count)
        drawn.update(one.index for one in found)
    assert set(drawn) == {2 * i + 1 for i in range(count + more)}
    expected = starts * min(most, count) / count
    assert all(abs(times - expected) <= 1 for times in drawn.values())


def test_draws_depend_on_the_seed():
    parts = tiny_parts(seed=3, noise=0.3, max_new_tokens=40)
    prompts = parts.prompts(6)
    whole = by_prompt(parts, prompts, most=3)
    assert by_prompt(parts, prompts, most=3, seed=1) != whole
    assert any(found.mismatches[0].weight > 1 for found in whole.values() if found.mismatches)


def test_what_prompts_have_in_common_is_read_once():
    parts, shared = tiny_parts(seed=3), (8, 5, 7, 6)
    prompts = [dataclasses.replace(prompt, tokens=(*shared, *prompt.tokens)) for prompt in parts.prompts(5)]
    read = []
    miner = judge(parts, slots=1)
    alone = {}
    for prompt in prompts:
        ((row, tokens),) = judge(parts, slots=1).outcomes([prompt])
        alone[prompt.id] = row.columns["last_response"], tokens
    handles = [
        model.register_forward_pre_hook(lambda module, args, kwargs: read.append(kwargs["input_ids"]), with_kwargs=True)
        for model in (parts.target, parts.draft)
    ]
    together = list(miner.outcomes(prompts))
    for handle in handles:
        handle.remove()
    begins = [ids for ids in read if tuple(ids[0, :4].tolist()) == shared]
    # By the target as it writes and as its states are read, and by the draft as it chooses.
    assert len(begins) == 3
    for row, tokens in together:
        response, wanted = alone[row.id]
        assert row.columns["last_response"] == response
        for name, values in tokens.items():
            np.testing.assert_allclose(values, wanted[name], atol=1e-5)
