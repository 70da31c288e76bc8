"""Prompts that are read once for several modes give the texts that they give when every mode reads them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from hf_lossy_assist import pairs
from hf_lossy_assist.evaluation.modes import Models, parse_modes
from hf_lossy_assist.evaluation.prompt_memory import PromptMemory, ReadPrompts
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from tests.eagle3_heads import trained_pair
from tests.tiny_models import tiny

MODES = "plain,draft,lossless,dropmatch,dropmatch:criterion=naive:dropout=0.2,judge,typical,everything,ears"
TREES = "lossless:tree.depth=4:tree.top_k=2:tree.nodes=8,judge:tree.depth=3:tree.nodes=6"


@pytest.fixture(scope="module")
def bundled():
    return pairs.load("arithmetic")


@pytest.fixture(scope="module")
def prompts(bundled):
    """Of different lengths, one of them shorter than the positions that choose a dropout."""
    texts = [example.prompt for example in bundled.task.examples("test", 3)]
    texts += [texts[0] + " Ada has 3 pens and 4 books." * 4, "Question: Tom has 3 apples.\nAnswer:"]
    return [bundled.tokenizer(text)["input_ids"] for text in texts]


@contextmanager
def counting(model):
    """Count the tokens that a model reads, all rows together."""
    counts = []

    def count(module, args, kwargs):
        counts.append(kwargs["input_ids"].numel())

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()


@pytest.mark.parametrize("mode", [*parse_modes(f"{MODES},{TREES}", 5), *parse_modes("plain,lossless,ears", 5, 0.9)])
@pytest.mark.parametrize("rows", [1, 5])
def test_texts_and_work_are_those_without_memory(bundled, prompts, mode, rows):
    models = Models(bundled.target, bundled.draft, bundled.heads)
    batch, *_ = batches_of(prompts, rows, pad=bundled.tokenizer.pad_token_id)
    alone = run_request(models, mode, batch, 40)
    memory = PromptMemory(models, batch)
    with memory.in_use():
        remembered = run_request(models, mode, batch, 40)
    assert [row.tolist() for row in remembered.rows] == [row.tolist() for row in alone.rows]
    if mode.rule is not None:  # plain batches are counted otherwise
        assert remembered.work == alone.work
    assert memory.seconds(mode) > 0


def test_first_forwards_are_over_the_prompts_last_tokens(bundled, prompts):
    models = Models(bundled.target, bundled.draft)
    (batch,) = batches_of(prompts, len(prompts), pad=bundled.tokenizer.pad_token_id)
    (lossless,) = parse_modes("lossless", 5)
    with PromptMemory(models, batch).in_use(), counting(models.target) as target, counting(models.draft) as draft:
        run_request(models, lossless, batch, 6)
    assert (target[0], draft[0]) == (len(prompts) * 6, len(prompts))
    with counting(models.target) as target:  # nothing is left on the models
        run_request(models, lossless, batch, 6)
    assert target[0] == len(prompts) * (batch.ids.shape[1] + 5)


def test_a_dropout_is_chosen_by_the_positions_that_it_is_chosen_by_without_memory(bundled, prompts):
    models = Models(bundled.target, bundled.draft)
    batch, *_ = batches_of(prompts[3:], 1)
    (mode,) = parse_modes("dropmatch", 5)
    with PromptMemory(models, batch).in_use(), counting(models.target) as target:
        run_request(models, mode, batch, 6)
    assert target[0] == 64 + 5


def test_other_prompts_are_read_whole(bundled, prompts):
    models = Models(bundled.target, bundled.draft)
    known, other = batches_of(prompts[:2], 1)
    (plain,) = parse_modes("plain", 5)
    with PromptMemory(models, known).in_use(), counting(models.target) as target:
        run_request(models, plain, other, 2)
    assert target[0] == other.ids.shape[1]


def test_seconds_are_those_of_the_models_that_a_mode_uses(bundled, prompts):
    memory = PromptMemory(Models(bundled.target, bundled.draft), batches_of(prompts[:2], 2, pad=0)[0])
    plain, draft, lossless = (memory.seconds(mode) for mode in parse_modes("plain,draft,lossless", 5))
    assert lossless == plain + draft


def test_models_whose_cache_is_not_one_slot_per_token_read_their_prompts_themselves(bundled, prompts):
    target, head = trained_pair()  # such a head reads the target's states of the whole prompt
    (batch,) = batches_of([[5, 6, 7, 8]], 1)
    (mode,) = parse_modes("lossless", 3)
    memory = PromptMemory(Models(target, head), batch)
    with memory.in_use(), counting(target) as sizes:
        run_request(Models(target, head), mode, batch, 4)
    assert sizes[0] >= 4
    assert memory.seconds(mode) == 0
    assert ReadPrompts.suit(bundled.target)
    assert not ReadPrompts.suit(tiny("mistral"))  # a sliding window
    assert not PromptMemory(Models(bundled.target), batches_of([[5]], 1)[0]).seconds(mode)
