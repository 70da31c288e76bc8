"""How many keys each attending layer keeps, by its cache."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING, DynamicCache, EncoderDecoderCache, StaticCache

from hf_lossy_assist.compat.caches import attention_windows, new_cache, rollback, text_cache
from tests.architectures import family
from tests.encoder_decoders import made
from tests.tiny_models import tiny

WINDOWS = {
    "llama": [None, None],
    "mistral": [8, 8],
    "llama4_text": [16, None],
    "gemma3_text": [8, None],
    "gemma3n_text": [8, None] * 2,  # the last two layers read the keys of the first
    "lfm2": [None, None],  # of four layers, two attend
}


@pytest.mark.parametrize("name", [name for name in WINDOWS if name in CONFIG_MAPPING])
def test_windows_of_layers_that_attend(name: str):
    model, _ = family(name)
    for cache in (DynamicCache(config=model.config), new_cache(model)):  # the second keeps everything
        assert attention_windows(model, cache) == WINDOWS[name]


def test_a_cache_without_a_configuration_has_no_windows():
    model = tiny("mistral")
    assert attention_windows(model, DynamicCache()) == []


def test_a_decoder_with_an_encoder_has_a_new_cache_for_both():
    model = made("bart")
    like = EncoderDecoderCache(StaticCache(model.config, max_cache_len=8), DynamicCache())
    cache = new_cache(model, like=like)
    assert type(cache) is EncoderDecoderCache
    assert type(text_cache(cache)) is DynamicCache
    assert attention_windows(model, cache) == [None, None]


def test_layers_that_hold_nothing_stay_empty_where_others_are_rolled_back():
    """A decoder may have fewer layers than its configuration says of the encoder."""
    cache = DynamicCache(config=tiny("llama").config)
    assert len(cache.layers) == 2
    cache.update(torch.ones(1, 2, 5, 8), torch.ones(1, 2, 5, 8), 0)
    rollback(cache, 3)
    assert [layer.get_seq_length() for layer in cache.layers] == [2, 0]
