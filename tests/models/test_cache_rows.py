"""After rows have been moved, a cache is what it would have been if it had been made for the new rectangle."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, DynamicLayer, StaticCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from hf_lossy_assist.compat.caches import CACHE, ready_for_rollback, recording
from hf_lossy_assist.compat.inputs import PlainForwardInputs
from hf_lossy_assist.core.texts import Texts
from hf_lossy_assist.models.cache_rows import movable, move_cache
from hf_lossy_assist.models.runner import DynamicCacheRunner
from tests.decoding.fixtures import PAD, longer, random_round, random_tokens, rectangle
from tests.models.references import TOLERANCE, assert_last_logits, inputs_of, states_of
from tests.tiny_models import tiny

WINDOW = 8
KINDS = {
    "llama": {DynamicLayer},
    "mistral": {DynamicSlidingWindowLayer},
    "gemma3": {DynamicLayer, DynamicSlidingWindowLayer},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("architecture", KINDS)
@torch.no_grad()
def test_keys_values_and_the_next_forward_s_logits(architecture: str, seed: int):
    model = tiny(architecture)
    generator = torch.Generator().manual_seed(seed)
    texts = [random_tokens(6, generator) for _ in range(4)]
    layout, ids, seen = Texts(rectangle(texts), PAD), rectangle(texts), 0
    cache = DynamicCache(config=model.config)
    ready_for_rollback(model, cache)
    moves = 0
    with recording(cache):
        for _ in range(5):
            new = random_round(len(texts), 5, generator)
            candidate = [text + tokens[:-1] for text, tokens in zip(texts, new.tokens, strict=True)]
            inputs = inputs_of(candidate) | {CACHE: cache}
            inputs["position_ids"] = inputs["position_ids"][:, seen:]
            logits = model(rectangle(candidate)[:, seen:], **inputs).logits
            assert_last_logits(model, logits[:, -6:], candidate)
            extended = torch.cat([ids, torch.tensor(new.tokens)], dim=1)
            shift = layout.grow(extended, longer(layout, new.counts), new.ended)
            if not layout.rows:
                break
            assert shift is not None, "every round of this test moves rows"
            texts = [new.after(texts)[i] for i in new.stays()]
            ids, seen, moves = shift.moved(extended, PAD), shift.known(ids.shape[1] + 5), moves + 1
            move_cache(cache, shift, seen)
            for layer, *alone in zip(cache.layers, *(states_of(model, text) for text in texts), strict=True):
                held = min(seen, WINDOW - 1) if isinstance(layer, DynamicSlidingWindowLayer) else seen
                assert layer.get_seq_length() == seen
                for mine, kind in ((layer.keys, 0), (layer.values, 1)):
                    assert mine.shape[-2] == held
                    for row, text, states in zip(mine, texts, alone, strict=True):
                        padding = layout.width - len(text)
                        real = range(max(padding, seen - held), seen)
                        wanted = states[kind][:, [slot - padding for slot in real]]
                        torch.testing.assert_close(row[:, held - len(real) :], wanted, **TOLERANCE)
    assert moves > 2
    assert {type(layer) for layer in cache.layers} == KINDS[architecture]


def test_which_caches_can_be_moved():
    model = tiny("mistral")
    assert movable(DynamicCache(config=model.config))
    assert movable(DynamicCache(config=tiny("llama").config))
    assert not movable(StaticCache(config=tiny("llama").config, max_cache_len=16))


@torch.no_grad()
def test_positions_that_only_fill_up_stay_inside_the_model():
    model, text = tiny("gpt2"), random_tokens(5, torch.Generator().manual_seed(0))
    carried = {**inputs_of([text] * 2), CACHE: DynamicCache(), "use_cache": True, "logits_to_keep": 1}
    forwards = DynamicCacheRunner(PlainForwardInputs(model), carried, 5, last_position=torch.tensor([[5]]))
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True)
    with forwards.in_use():
        forwards.forward(torch.tensor([[*text, 3, 4, 5]] * 2))
    assert seen[0].tolist() == [[0, 1, 2, 3, 4, 5, 5, 5]] * 2
