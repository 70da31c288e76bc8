"""A dynamic cache says what one forward over the whole text says, whatever was run, forgotten and moved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from hf_lossy_assist.compat import CACHE, ForwardInputs, PlainForwardInputs, forward_inputs, ready_for_rollback
from hf_lossy_assist.core.texts import Texts
from hf_lossy_assist.models.runner import DynamicCacheRunner
from tests.decoding.fixtures import PAD, between, longer, random_round, random_tokens, rectangle
from tests.models.references import assert_last_logits, follow_rows, inputs_of, keep, prompts
from tests.tiny_models import tiny

ARCHITECTURES = pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
INPUTS = pytest.mark.parametrize("kind", [PlainForwardInputs, ForwardInputs], ids=["plain", "transformers"])


def growing(model: PreTrainedModel, texts: list[list[int]], kind: type[ForwardInputs]) -> DynamicCacheRunner:
    cache = DynamicCache(config=model.config)
    ready_for_rollback(model, cache)
    carried: dict[str, Any] = {**inputs_of(texts), CACHE: cache, "use_cache": True, "logits_to_keep": 1}
    assert type(forward_inputs(model, rectangle(texts), carried)) is PlainForwardInputs
    return DynamicCacheRunner(kind(model), carried, len(texts[0]))


@INPUTS
@ARCHITECTURES
@torch.no_grad()
def test_rows_that_agree_are_run_rewound_and_extended(architecture: str, kind: type[ForwardInputs]):
    model, generator = tiny(architecture), torch.Generator().manual_seed(1)
    texts = prompts((7, 4), generator)
    forwards = growing(model, texts, kind)
    with forwards.in_use():
        for drafted in (4, 0, 5, 1, 0, 0, 3, 6):
            new = random_round(2, drafted, generator, ends=0)
            new.counts = [new.counts[0]] * 2
            unread = random_tokens(between(0, 2, generator), generator)  # committed without having been read
            texts = [text + unread for text in texts]
            candidate = [text + tokens[:-1] for text, tokens in zip(texts, new.tokens, strict=True)]
            seen = forwards.seen
            logits = forwards.run(rectangle(candidate), drafted + 1).logits
            assert_last_logits(model, logits[:, -(drafted + 1) :], candidate)
            assert forwards.sent == 2 * (len(candidate[0]) - seen)
            assert forwards.seen == len(candidate[0])
            texts = new.after(texts)
            forwards.rewind(len(texts[0]) - 1)
            forwards.extend(len(texts[0]))
            assert forwards.seen == forwards.cache.get_seq_length() == len(texts[0]) - 1


@INPUTS
@ARCHITECTURES
@torch.no_grad()
def test_rows_that_differ_are_run_and_moved(architecture: str, kind: type[ForwardInputs]):
    model, generator = tiny(architecture), torch.Generator().manual_seed(2)
    texts = prompts((6, 3, 5, 6, 1), generator)
    forwards = growing(model, texts, kind)
    with forwards.in_use():
        follow_rows(forwards, texts, (4, 0, 5, 0, 2, 6, 3), generator)
    assert forwards.seen == forwards.cache.get_seq_length()


@torch.no_grad()
def test_a_batch_without_a_mask_gets_one_when_its_rows_part():
    model, generator = tiny(), torch.Generator().manual_seed(3)
    texts = [random_tokens(5, generator) for _ in range(3)]
    cache = DynamicCache(config=model.config)
    forwards = DynamicCacheRunner(PlainForwardInputs(model), {CACHE: cache, "use_cache": True}, 5)
    layout, ids = Texts(rectangle(texts), PAD), rectangle(texts)
    with forwards.in_use():
        for counts in ([3, 1, 2], [1, 1, 1], [2, 3, 1]):
            new = random_round(3, 2, generator, ends=0)
            new.counts = counts
            candidate = [text + tokens[:-1] for text, tokens in zip(texts, new.tokens, strict=True)]
            assert_last_logits(model, forwards.run(rectangle(candidate), 3).logits[:, -3:], candidate)
            extended = torch.cat([ids, torch.tensor(new.tokens)], dim=1)
            shift, texts = layout.grow(extended, longer(layout, new.counts), new.ended), new.after(texts)
            ids = rectangle(texts)
            keep(forwards, layout, shift, extended)


@torch.no_grad()
def test_positions_that_only_fill_up_stay_inside_the_model():
    model, text = tiny("gpt2"), random_tokens(5, torch.Generator().manual_seed(0))
    carried = {**inputs_of([text] * 2), CACHE: DynamicCache(), "use_cache": True, "logits_to_keep": 1}
    forwards = DynamicCacheRunner(PlainForwardInputs(model), carried, 5, last_position=torch.tensor([[5]]))
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True)
    with forwards.in_use():
        forwards.run(torch.tensor([[*text, 3, 4, 5]] * 2), 1)
    assert seen[0].tolist() == [[0, 1, 2, 3, 4, 5, 5, 5]] * 2


@torch.no_grad()
def test_inputs_may_be_overridden():
    model, text = tiny(), torch.tensor([random_tokens(5, torch.Generator().manual_seed(0))])
    carried = {CACHE: DynamicCache(), "use_cache": True}
    forwards = DynamicCacheRunner(PlainForwardInputs(model), carried, 5)
    with forwards.in_use():
        assert forwards.run(text, 1, {"output_hidden_states": True}).hidden_states is not None
