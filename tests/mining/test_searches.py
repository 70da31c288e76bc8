"""AutoJudge's search against the algorithm as printed, and against what it promises."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_lossy_assist import pairs
from hf_lossy_assist.mining.search import Found
from tests.mining import reference
from tests.mining.parts import Checksum, Parts, by_prompt, tiny_parts
from tests.tiny_models import ARCHITECTURES


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
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


@pytest.fixture(scope="module")
def bundled() -> Parts:
    pair = pairs.load("arithmetic")
    return Parts(pair.target, pair.draft, pair.tokenizer, pair.task, max_new_tokens=100)


def test_labels_and_promises_on_the_bundled_pair(bundled):
    prompts = [bundled.prompts(9)[i] for i in (1, 8)]  # without a mismatch, and with a few
    found = by_prompt(bundled, prompts, slots=2)
    for prompt in prompts:
        assert_same(found[prompt.id], expected(bundled, prompt))
        assert_promises(bundled, prompt, found[prompt.id])
    labels = [mismatch.important for one in found.values() for mismatch in one.mismatches]
    assert {*labels} == {True, False}


def test_neither_the_batch_nor_threads_change_anything():
    parts = tiny_parts()
    prompts = parts.prompts(5)
    alone = by_prompt(parts, prompts, slots=1)
    assert by_prompt(parts, prompts, slots=3) == alone
    assert by_prompt(parts, prompts, slots=16, workers=3) == alone


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


def test_a_task_that_raises_costs_one_prompt_only():
    class Moody(Checksum):
        def answer(self, example, response):
            if example.prompt == bad.example.prompt:
                raise ZeroDivisionError("no idea")
            return super().answer(example, response)

    parts = tiny_parts(task=Moody())
    prompts = parts.prompts(5)
    bad = prompts[2]
    for workers in (0, 2):
        results = {result.prompt.id: result for result in parts.searches(slots=2, workers=workers).run(prompts)}
        assert [i for i in sorted(results) if results[i].error is not None] == [2]
        assert str(results[2].error) == "no idea"


def test_a_continuation_costs_nothing_but_its_own_tokens():
    parts = tiny_parts(seed=2)
    (prompt,) = parts.prompts(1)
    (result,) = parts.searches(slots=1).run([prompt])
    lengths = []

    def generate(model, ids, room):
        new = reference.generate(model, ids, room)
        lengths.append(len(new))
        return new

    wanted = expected(parts, prompt, generate=generate)
    assert_same(result.found, wanted)
    # The prompt's last token, or the one put in another's place, is read first, and the last one written is not read.
    assert result.counts.target_tokens == len(prompt.tokens) - 1 + sum(lengths)
    assert lengths[1:], "nothing was continued"


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
