"""Offloaded caches: the text of plain ``generate()``, on a cache that stays offloaded."""

from __future__ import annotations

import warnings

import pytest
import torch

from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.compat.probe import obstacle_to_rollback
from tests.architectures import family
from tests.dflash_heads import random_dflash
from tests.eagle3_heads import random_head
from tests.encoder_decoders import made
from tests.mtp_checkpoints import loaded, write
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, padded, prompt, tiny

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}


class NoStream:
    """Stands for a stream of a GPU, on which layers come and go."""

    def __enter__(self) -> NoStream:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def wait_stream(self, other: object) -> None:
        return

    def __deepcopy__(self, memo: object) -> None:
        raise TypeError("streams can't be copied")


@pytest.fixture(autouse=True)
def _no_streams(monkeypatch):
    monkeypatch.setattr(torch, "Stream", NoStream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda *device: NoStream())


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3_next"])
def pair(request):
    model = family(request.param)[0] if request.param == "qwen3_next" else tiny(request.param)
    if obstacle_to_rollback(model, several=True) is not None:
        pytest.skip("does not go on from a state in this version")
    return model, noisy_copy(model, 0.003)


@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded((3, 9))], ids=["one", "batch"])
@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
def test_texts_are_those_of_plain_generation(pair, inputs, kind: str):
    target, draft = pair
    settings = inputs | GREEDY | {"max_new_tokens": 16}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a static one gives way to one that grows
        _, ours = assert_lossless(target, {"cache_implementation": kind, "assistant_model": draft}, **settings)
    assert ours.lossy_stats.accepted
    assert len(ours.sequences) > 1 or getattr(ours, CACHE).offloading


TREE = {"lossy_config": {"tree": {"depth": 3, "top_k": 3, "nodes": 6}}}
DRAFTING = {
    "EAGLE-3": lambda: {"assistant_model": random_head()},
    "DFlash": lambda: {"assistant_model": random_dflash()},
    "look-up, else DFlash": lambda: {"assistant_model": random_dflash(), "prompt_lookup_num_tokens": 3},
    "a tree": lambda: {"assistant_model": noisy_copy(tiny("llama"))} | TREE,
    "EAGLE-3's tree": lambda: {"assistant_model": random_head()} | TREE,
    "MTP": lambda: {"use_mtp": True},
}


@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded((3, 9))], ids=["one", "batch"])
@pytest.mark.parametrize("name", DRAFTING)
def test_heads_and_trees_draft_beside_it(name: str, inputs, tmp_path):
    target = loaded(write("mimo", tmp_path)) if name == "MTP" else tiny("llama")
    for kind in ("offloaded", "offloaded_static"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drafting = {"cache_implementation": kind, **DRAFTING[name]()}
            _, ours = assert_lossless(target, drafting, **inputs, **GREEDY, max_new_tokens=16)
        assert ours.lossy_stats.drafted


def test_a_cache_is_handed_on(pair):
    target, draft = pair
    whole = target.generate(prompt(9), max_new_tokens=24, **GREEDY)
    text, kept = prompt(9), {"cache_implementation": "offloaded"}
    for extra in ({"assistant_model": draft, "lossy_mode": "lossless"},) * 2 + ({},):
        out = target.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=8, **GREEDY, **kept, **extra)
        text, kept = out.sequences, {CACHE: getattr(out, CACHE)}
        assert getattr(out, CACHE).offloading
    assert text.equal(whole.sequences)


def test_decoders_with_an_encoder():
    target = made("bart")
    settings = {"input_ids": prompt(), "max_new_tokens": 16} | GREEDY
    drafting = {"cache_implementation": "offloaded_static", "assistant_model": noisy_copy(target, 0.02)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, ours = assert_lossless(target, drafting, **settings)
    assert getattr(ours, CACHE).self_attention_cache.offloading
