"""What models bear, of architectures that don't read drafts as plain decoding reads tokens."""

from __future__ import annotations

import pytest
import torch
from transformers import StaticCache

from hf_lossy_assist import LossyError, enable
from hf_lossy_assist.compat import CACHE, ask, shares_forwards
from tests.parity import assert_lossless
from tests.sweep.models import made
from tests.tiny_models import noisy_copy, padded, prompt, tiny
from tests.trial.drawing import attempt

LOOKUP = {"prompt_lookup_num_tokens": 3, "lossy_mode": "lossless", "max_new_tokens": 8, "pad_token_id": 0}


def assert_refused(name: str, *said: str, **inputs) -> None:
    model = made(name)
    enable(model)
    ask(model)
    ours = attempt(lambda: model.generate(**inputs, **LOOKUP), model)
    assert isinstance(ours.error, LossyError), ours.error
    assert all(word in str(ours.error) for word in said), ours.error
    assert not ours.forwards


@pytest.mark.parametrize(
    ("name", "said"), [("dory last_loop", "`recurrent_kv_cache_mode`"), ("moshi", "a sliding window that its masks")]
)
def test_models_that_read_several_tokens_otherwise_are_no_targets_and_no_drafts(name: str, said: str):
    assert_refused(name, said, input_ids=prompt())
    target = tiny()
    enable(target)
    ours = attempt(lambda: target.generate(prompt(), assistant_model=made(name), lossy_mode="lossless"), target)
    assert isinstance(ours.error, LossyError)
    assert said in str(ours.error)


def test_the_same_model_without_the_loops():
    assert ask(made("dory")).several


@pytest.mark.parametrize("name", ["deepseek_v4", "minimax_m3_vl_text"])
def test_padding_that_a_model_does_not_bear(name: str):
    assert_refused(name, "`attention_mask` has padding", "without padding", **padded((3, 9)))


@pytest.mark.parametrize(
    ("name", "together", "trees"),
    [("llama", True, True), ("bart", False, False), ("roformer", False, False), ("bloom", True, False)],
)
def test_what_plain_attention_bears(name: str, together: bool, trees: bool):
    model = made(name)
    bears = ask(model)
    assert bears.one
    assert bears.several
    assert shares_forwards(model) == together
    assert bears.trees == trees


@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded((3, 9))], ids=["one", "padded"])
def test_a_prompt_that_has_to_be_read_alone(inputs: dict[str, torch.Tensor]):
    """GIT masks padding in another way behind a cache."""
    target = made("git")
    enable(target)
    assert not ask(target).at_first
    assert_lossless(target, {"assistant_model": noisy_copy(target, 0.01)}, **inputs, max_new_tokens=12, pad_token_id=0)


def test_a_model_that_sees_what_follows_bears_nothing(monkeypatch: pytest.MonkeyPatch):
    model = made("llama")
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
    model = made(name)
    enable(model)
    cache = StaticCache(config=model.config, max_cache_len=64)
    drafting = {"assistant_model": noisy_copy(model), "lossy_mode": "lossless"}
    with pytest.raises(LossyError, match=r"can't be rolled back by position \(.*Linear"):
        model.generate(prompt(), attention_mask=torch.ones(1, 7).long(), **{CACHE: cache}, **drafting)
