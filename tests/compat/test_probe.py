"""What models bear, of architectures that don't read drafts as plain decoding reads tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, PreTrainedModel, StaticCache

from hf_lossy_assist import LossyError, prepack, quantize_draft
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.compat.probe import ask, shares_forwards
from tests.architectures import made
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, padded, prompt, tiny
from tests.trial.drawing import attempt

LOOKUP = {"prompt_lookup_num_tokens": 3, "lossy_mode": "lossless", "max_new_tokens": 8, "pad_token_id": 0}


def known(name: str, **more) -> PreTrainedModel:
    """Return a model of an architecture that this version of transformers has."""
    if name.split()[0] not in CONFIG_MAPPING:
        pytest.skip("this version has no such architecture")
    return made(name, **more)


def assert_refused(name: str, *said: str, **inputs) -> None:
    model = known(name)
    ask(model)
    ours = attempt(lambda: model.generate(**inputs, **LOOKUP), model)
    assert isinstance(ours.error, LossyError), ours.error
    assert all(word in str(ours.error) for word in said), ours.error
    assert not ours.forwards


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dory last_loop", "`recurrent_kv_cache_mode`"),
        ("moshi", "a sliding window that its masks"),
        ("cpmant", "attend to later ones"),
    ],
)
def test_models_that_read_several_tokens_otherwise_are_no_targets_and_no_drafts(name: str, said: str):
    assert_refused(name, said, input_ids=prompt())
    target = tiny()
    ours = attempt(lambda: target.generate(prompt(), assistant_model=known(name), lossy_mode="lossless"), target)
    assert isinstance(ours.error, LossyError)
    assert said in str(ours.error)


def test_the_same_model_without_the_loops():
    assert ask(known("dory")).several


@pytest.mark.parametrize("name", ["deepseek_v4", "minimax_m3_vl_text"])
def test_padding_that_a_model_does_not_bear(name: str):
    assert_refused(name, "`attention_mask` has padding", "without padding", **padded((3, 9)))


@pytest.mark.parametrize("more", [{}, {"cache_implementation": "static"}, {"prefill_chunk_size": 5}], ids=str)
def test_a_prompt_that_layers_keep_whole(more: dict):
    """Unlimited-OCR's windows are over what follows the prompt, so a draft behind it is no part of the prompt."""
    target = known("unlimited_ocr", auto=AutoModelForImageTextToText).float()
    drafting = {"assistant_model": noisy_copy(target), "num_assistant_tokens": 3}
    assert_lossless(target, drafting, inputs=prompt(17), max_new_tokens=24, eos_token_id=None, **more)


@pytest.mark.parametrize(
    ("name", "together", "trees"),
    [("llama", True, True), ("bart", False, False), ("roformer", False, False), ("bloom", True, False)],
)
def test_what_plain_attention_bears(name: str, together: bool, trees: bool):
    model = known(name)
    bears = ask(model)
    assert bears.one
    assert bears.several
    assert shares_forwards(model) == together
    assert bears.trees == trees


@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded((3, 9))], ids=["one", "padded"])
def test_a_prompt_that_has_to_be_read_alone(inputs: dict[str, torch.Tensor]):
    """GIT masks padding in another way behind a cache."""
    target = known("git")
    assert not ask(target).at_first
    assert_lossless(target, {"assistant_model": noisy_copy(target, 0.01)}, **inputs, max_new_tokens=12, pad_token_id=0)


@pytest.mark.parametrize(
    "change",
    [quantize_draft, partial(quantize_draft, dtype="int4"), prepack, torch.nn.Module.bfloat16, torch.nn.Module.half],
    ids=["int8", "int4", "prepacked", "bfloat16", "float16"],
)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_rounding_is_no_difference(name: str, change: Callable[[PreTrainedModel], PreTrainedModel]):
    """Rounded inputs differ by more than their type does, and say nothing of the model that they were made from."""
    model = known(name).float()
    changed = change(copy.deepcopy(model))
    assert ask(changed) == ask(model)
    assert ask(model).trees


@pytest.mark.parametrize("change", [quantize_draft, torch.nn.Module.bfloat16])
def test_rounding_hides_no_difference(change: Callable[[PreTrainedModel], PreTrainedModel]):
    model = change(known("deepseek_v4").float())
    assert not ask(model).padded
    assert not ask(model).at_first


def test_a_state_outside_the_cache_shows_in_half_precision():
    assert not ask(known("recurrent_gemma").bfloat16()).one


def test_experts_that_rounded_inputs_change():
    assert ask(quantize_draft(known("granitemoeshared").float())).trees


def test_a_model_in_training_is_asked_without_its_dropout():
    model = known("gpt2").train()
    model.transformer.h[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    torch.manual_seed(3)
    assert ask(model).trees
    assert {name: module.training for name, module in model.named_modules()} == before
    assert torch.initial_seed() == 3
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(3)))


def test_a_model_that_sees_what_follows_bears_nothing(monkeypatch: pytest.MonkeyPatch):
    model = known("llama")
    model.config.attention_bias = True  # another configuration, so it is asked anew
    forward = type(model).forward

    def two_sided(self, input_ids=None, **kwargs):
        outputs = forward(self, input_ids=input_ids, **kwargs)
        outputs.logits = outputs.logits + outputs.logits.roll(-1, dims=1)
        return outputs

    monkeypatch.setattr(type(model), "forward", two_sided)
    assert not ask(model).several


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next"])
def test_layers_that_a_static_cache_can_not_roll_back_are_named(name: str):
    model = known(name)
    cache = StaticCache(config=model.config, max_cache_len=64)
    drafting = {"assistant_model": noisy_copy(model), "lossy_mode": "lossless"}
    with pytest.raises(LossyError, match=r"can't be rolled back by position \(.*Linear"):
        model.generate(prompt(), attention_mask=torch.ones(1, 7).long(), **{CACHE: cache}, **drafting)
