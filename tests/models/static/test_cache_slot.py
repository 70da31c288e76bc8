"""Static caches are rolled back by position, and lent to one call at a time."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel, StaticCache

from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.models.static.cache_slot import StaticCacheSlot, give_back, new_static_cache, rewinds, take_slot
from hf_lossy_assist.models.static.runner import StaticCacheRunner
from tests.tiny_models import prompt, tiny


@pytest.fixture
def target() -> PreTrainedModel:
    return tiny("llama")


def test_windows_become_masks():
    mistral = tiny("mistral")
    assert not rewinds(StaticCache(config=mistral.config, max_cache_len=64))
    assert rewinds(new_static_cache(mistral, 64))


def test_a_slot_seeks_and_says_what_fits(target):
    slot = StaticCacheSlot(new_static_cache(target, 16))
    slot.seek(0)
    target(prompt(7), **{CACHE: slot.cache})
    slot.filled += 7
    slot.seek(4)
    assert [int(layer.cumulative_length) for layer in slot.cache.layers] == [4, 4]
    again = target(prompt(7)[:, 4:], **{CACHE: slot.cache}).logits
    torch.testing.assert_close(again, target(prompt(7)).logits[:, 4:])
    assert slot.fits(10, 6)
    assert not slot.fits(11, 6)


def test_caches_are_lent_once(target):
    first = take_slot(target, 60)
    assert take_slot(target, 60) is not first
    give_back(target, first)
    assert take_slot(target, 500) is not first
    assert take_slot(target, 33, rows=2) is not first
    assert take_slot(target, 33) is first


def test_a_longer_cache_is_lent_again_but_not_a_much_longer_one(target):
    long, short = take_slot(target, 2000), take_slot(target, 200)
    give_back(target, long)
    give_back(target, short)
    assert take_slot(target, 190) is short
    assert take_slot(target, 60) is not long
    assert take_slot(target, 400) is long
    assert take_slot(target, 400).capacity == 512


def test_a_cache_goes_back_to_the_pool_unless_it_is_the_caller_s():
    model = tiny()
    for keeps in (False, True):
        forwards = StaticCacheRunner(model, take_slot(model, 64), {})
        forwards.fixed.keeps_cache = keeps
        with forwards.in_use():
            pass
        assert (take_slot(model, 64) is forwards.slot) != keeps
