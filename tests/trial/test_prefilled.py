"""Caches that hold the prompt already: lossless text is plain text, which reads the prompt anew behind them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StaticCache

from hf_lossy_assist.compat.caches import CACHE
from tests import dflash_heads, eagle3_heads, mtp_checkpoints
from tests.nightly import spread
from tests.tiny_models import prompt
from tests.trial.calls import filled
from tests.trial.exact import CHAINS, DRAFTERS, assert_refused, assert_right, exact

HEADS: Mapping[str, Callable[[], Any]] = {
    "eagle3": lambda: eagle3_heads.random_head(target_layers=(0, 1, 2)),
    "dflash": dflash_heads.random_dflash,
}


def of_forward(target: PreTrainedModel) -> dict[str, Any]:
    return {"input_ids": prompt(), CACHE: filled(target, prompt())}


def of_generate(target: PreTrainedModel) -> dict[str, Any]:
    """Return what a call for one token leaves: all of the prompt, too."""
    cache = DynamicCache(config=target.config)
    target.generate(prompt(), max_new_tokens=1, do_sample=False, pad_token_id=0, **{CACHE: cache})
    return {"input_ids": prompt(), CACHE: cache}


@spread(
    name=["gpt2", "llama", "mistral", "gemma3_text", "bamba", "mpt"], drafter=DRAFTERS, made=[of_forward, of_generate]
)
def test_the_whole_prompt(name: str, drafter: str, made: Callable[[PreTrainedModel], dict[str, Any]]):
    target, draft = exact(name)
    if drafter == "tree" and name in ("mpt", "bamba"):
        pytest.skip("drafts no trees")
    assert_right(target, made(target), DRAFTERS[drafter](draft), eos_token_id=None)


@pytest.mark.parametrize("head", HEADS)
def test_heads_on_states(head: str):
    target, drafter = exact("llama")[0], HEADS[head]().double()
    assert_right(target, of_forward(target), {"assistant_model": drafter}, eos_token_id=None)


def test_a_layer_for_several_tokens(tmp_path):
    mtp_checkpoints.write(next(iter(mtp_checkpoints.FAMILIES)), tmp_path)
    target = mtp_checkpoints.loaded(tmp_path)
    assert_right(target, of_forward(target), {"use_mtp": True}, eos_token_id=None)


def test_a_static_cache():
    target, draft = exact("llama")
    cache = StaticCache(config=target.config, max_cache_len=64)
    with torch.no_grad():
        target(prompt(), **{CACHE: cache}, use_cache=True)
    inputs = {"input_ids": prompt(), CACHE: cache}
    assert_refused(target, inputs, CHAINS["model"](draft), f"`{CACHE}`", "new ones after them")
    longer = inputs | {"input_ids": torch.cat([prompt(), prompt(2, seed=3)], dim=1)}
    assert_right(target, longer, CHAINS["model"](draft), eos_token_id=None)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3_text"])
def test_more_than_the_prompt(name: str, drafter: str):
    target, draft = exact(name)
    longer = of_forward(target) | {"input_ids": prompt()[:, :4]}
    assert_refused(target, longer, DRAFTERS[drafter](draft), f"`{CACHE}`", "7 tokens", "`input_ids`", "only 4")


def test_padding_would_be_read_twice():
    target, draft = exact("llama")
    mask = torch.ones(1, 7).long()
    mask[:, :2] = 0
    inputs = {"input_ids": prompt(), "attention_mask": mask, CACHE: filled(target, prompt(), mask)}
    assert_refused(target, inputs, CHAINS["model"](draft), f"`{CACHE}`", "leave out the last")
    cropped = copy.deepcopy(inputs)
    cropped[CACHE].crop(-1)
    assert_right(target, cropped, CHAINS["model"](draft), eos_token_id=None)
