"""AutoJudge's search against the algorithm as printed, and against what it promises."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_lossy_assist.tasks import Example
from hf_lossy_assist.training.choice import GumbelMax, gumbel
from hf_lossy_assist.training.judge_labels import Found, search
from tests.tiny_models import SOME_ARCHITECTURES
from tests.training import reference
from tests.training.parts import Checksum, Parts, by_prompt, judge, tiny_parts


def expected(parts: Parts, prompt, **functions):
    return reference.important_tokens(
        parts.target, parts.draft, list(prompt.tokens), parts.limits().eos, parts.max_new_tokens,
        parts.answer, parts.task.equivalent, **functions,
    )  # fmt: skip


def assert_same(found: Found, wanted) -> None:
    if wanted is None:
        assert found.answer is None
        assert found.mismatches == ()
        return
    first, last, mismatches = wanted
    assert list(found.first) == first
    assert [(m.index, m.target_token, m.draft_token, m.important) for m in found.mismatches] == mismatches
    assert list(found.last) == last


def replay(parts: Parts, prompt, found: Found) -> list[int]:
    """Decode with the labels instead of a head: the draft's token at unimportant mismatches, else the target's."""
    labels = {mismatch.index: mismatch for mismatch in found.mismatches}
    response: list[int] = []
    while not parts.limits().over(response):
        ids = torch.tensor([[*prompt.tokens, *response]])
        with torch.no_grad():
            p, q = (model(input_ids=ids).logits[0, -1].argmax().item() for model in (parts.target, parts.draft))
        label = labels.get(len(response))
        assert (label is None) == (p == q)
        if label is not None:
            assert (label.target_token, label.draft_token) == (p, q)
        response.append(p if label is None or label.important else q)
    return response


def assert_promises(parts: Parts, prompt, found: Found) -> None:
    if found.answer is None:
        return
    replayed = replay(parts, prompt, found)
    assert tuple(replayed) == found.last
    assert parts.task.equivalent(parts.answer(replayed), found.answer)
    drafted = parts.answer(reference.generate(parts.draft, list(prompt.tokens), parts.max_new_tokens))
    if not parts.task.equivalent(found.answer, drafted):
        assert any(mismatch.important for mismatch in found.mismatches)


@pytest.mark.parametrize("architecture", SOME_ARCHITECTURES)
def test_labels_are_those_of_the_printed_algorithm(architecture):
    parts = tiny_parts(architecture, seed=3, noise=0.2, task=Checksum(5))
    prompts = parts.prompts(3)
    found = by_prompt(parts, prompts, slots=2)
    for prompt in prompts:
        assert_same(found[prompt.id], expected(parts, prompt))
    assert any(one.mismatches for one in found.values())


@settings(max_examples=5)
@given(
    seed=st.integers(0, 10_000),
    noise=st.sampled_from([0.01, 0.05, 0.2]),
    modulus=st.integers(2, 4),
    t_max=st.integers(1, 20),
)
def test_promises_hold_for_random_models(seed, noise, modulus, t_max):
    parts = tiny_parts("llama", seed, noise, task=Checksum(modulus), max_new_tokens=t_max)
    prompts = parts.prompts(3, split=str(seed))
    found = by_prompt(parts, prompts, slots=2)
    for prompt in prompts:
        assert_same(found[prompt.id], expected(parts, prompt))
        assert_promises(parts, prompt, found[prompt.id])


def test_the_batch_changes_nothing():
    parts = tiny_parts()
    prompts = parts.prompts(5)
    alone = by_prompt(parts, prompts, slots=1)
    assert by_prompt(parts, prompts, slots=3) == alone
    assert by_prompt(parts, prompts, slots=16) == alone


def test_an_end_is_a_token_like_any_other():
    """A draft's end cuts a response off, and a target's end that is replaced opens it again."""
    replaced = set()
    for seed in range(3):
        parts = tiny_parts(seed=seed)
        eos = parts.limits().eos
        for found in by_prompt(parts, parts.prompts(6)).values():
            replaced |= {(m.target_token in eos, m.draft_token in eos) for m in found.mismatches}
            assert len(found.last) <= parts.max_new_tokens
            assert not any(token in eos for token in found.last[:-1])
    assert {(True, False), (False, True), (False, False)} <= replaced


def test_prompts_are_taken_one_by_one():
    """A run over a long list begins with the first prompts, and does not look at the rest before it needs them."""
    parts = tiny_parts()
    taken = []

    def source():
        for prompt in parts.prompts(9):
            taken.append(prompt.id)
            yield prompt

    results = parts.searches(slots=2).run(source())
    list(itertools.islice(results, 1))
    assert len(taken) <= 4


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
        wanted = expected(
            parts, prompt,
            generate=lambda model, ids, room: draw(model, ids, room, choice, eos),
            choices=lambda model, ids, response: [
                draw(model, ids + response[:i], 1, choice, eos)[0] for i in range(len(response))
            ],
        )  # fmt: skip
        assert_same(found[prompt.id], wanted)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_continuation_costs_nothing_but_its_own_tokens(slots: int):
    parts = tiny_parts(seed=3)
    prompts, lengths, read = parts.prompts(3), [], []

    def generate(model, ids, room):
        new = reference.generate(model, ids, room)
        lengths.append(len(new))
        return new

    wanted = [expected(parts, prompt, generate=generate) for prompt in prompts]
    handle = parts.target.register_forward_pre_hook(
        lambda module, args, kwargs: read.append((args[0] if args else kwargs["input_ids"]).numel()), with_kwargs=True
    )
    results = {one.prompt.id: one for one in parts.searches(slots).run(prompts)}
    handle.remove()
    for prompt, labels in zip(prompts, wanted, strict=True):
        assert_same(results[prompt.id].found, labels)
    # The prompt's last token, or the one put in another's place, is read first, and the last one written is not read.
    cost = sum(one.cost for one in results.values())
    assert cost == sum(len(prompt.tokens) - 1 for prompt in prompts) + sum(lengths)
    assert len(lengths) > len(prompts), "nothing was continued"
    assert sum(read) >= cost
    if slots == 1:  # no text is padded
        assert sum(read) == cost


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
