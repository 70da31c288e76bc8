"""Lossless greedy decoding is plain greedy decoding, token for token."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from hf_lossy_assist.compat.caches import CACHE
from tests.nightly import nightly
from tests.parity import assert_same_rows
from tests.tiny_models import ARCHITECTURES, noisy_copy, prompt, tiny

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 24}


# Drafts are shorter and longer than the windows of the models that have one.
@pytest.mark.parametrize(
    ("architecture", "gamma"),
    nightly(
        [*((name, 5) for name in ARCHITECTURES), ("llama", 1), ("llama", 16), ("mistral", 16), ("gemma3", 16)],
        but=[("gpt2", 5), ("qwen3", 5), ("gpt_neox", 5), ("llama", 1), ("mistral", 16), ("gemma3", 16)],
    ),
)
def test_every_architecture(architecture, gamma):
    target, lengths = tiny(architecture), set()
    kwargs = GREEDY | {"input_ids": prompt(), "eos_token_id": None}
    plain = target.generate(**kwargs)
    for noise in (0.0, 0.01, 0.03):
        ours = target.generate(
            **kwargs, assistant_model=noisy_copy(target, noise), lossy_mode="lossless", num_assistant_tokens=gamma
        )
        assert_same_rows(ours.sequences, plain)
        lengths |= {i for i, count in enumerate(ours.lossy_stats.accepted_histogram) if count}
    # The drafts are chosen so that rounds end early, late and not at all.
    assert {0, gamma} <= lengths


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3"])
def test_a_cache_can_be_passed_in_returned_and_used_on(architecture):
    target, ids = tiny(architecture), prompt(12)
    kwargs = GREEDY | {"max_new_tokens": 10, "eos_token_id": None}
    lossy = {"assistant_model": noisy_copy(target, 0.01), "lossy_mode": "lossless"}
    plain = target.generate(input_ids=ids, **(kwargs | {"max_new_tokens": 30}))
    text, cache = ids, DynamicCache(config=target.config)
    for extra in (lossy, {}, lossy):  # ours, plain, ours again, all on one cache
        mask = torch.ones_like(text)  # a random model may well generate the padding token
        out = target.generate(input_ids=text, attention_mask=mask, **{CACHE: cache}, **kwargs, **extra)
        text, cache = out.sequences, getattr(out, CACHE)
        assert cache.get_seq_length() == text.shape[1] - 1
    assert text.tolist() == plain.sequences.tolist()
    plain_layers = getattr(plain, CACHE).layers
    for ours_layer, plain_layer in zip(cache.layers, plain_layers, strict=True):
        assert ours_layer.keys.shape == plain_layer.keys.shape, "no rejected or out-of-window states stay behind"
