"""Drafts with int8 weights."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hf_lossy_assist import (
    LossyUnsupportedError,
    LossyValueError,
    enable,
    last_stats,
    pairs,
    prepack,
    quantize_draft,
    save_int8_draft,
)
from hf_lossy_assist.models.quantised import DynamicInt8Linear, Int4Linear, WeightOnlyInt8Linear


@pytest.fixture(scope="module")
def pair() -> pairs.Pair:
    return pairs.load()


def _exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "levels"), [(DynamicInt8Linear, 127), (WeightOnlyInt8Linear, 127), (Int4Linear, 7.5)])
def test_errors_stay_within_half_a_step_of_weights_and_inputs(kind, levels: float, bias: bool, dtype: torch.dtype):
    torch.manual_seed(3)
    linear = nn.Linear(64, 48, bias=bias).to(dtype)
    x = torch.randn(3, 5, 64, dtype=dtype) * torch.tensor([0.01, 1.0, 100.0], dtype=dtype)[:, None, None]
    exact, got = _exact(x, linear.weight, linear.bias), kind(linear.weight, linear.bias)(x)
    assert got.dtype == dtype
    # Half a step of each weight; one step of 8 bits, over twice the token's largest input, of each input. Int4 has its
    # scales in bfloat16, too.
    wide, size = linear.weight.double(), x.double().abs()
    weight_step = wide.abs().amax(1) / levels / 2
    bound = size.sum(-1, keepdim=True) * weight_step
    bound = bound + 2 * size.amax(-1, keepdim=True) / 127 * wide.abs().sum(1)
    if dtype is torch.bfloat16:
        bound = bound + 2**-7 * (exact.abs() + size @ wide.abs().T)
    assert ((got.double() - exact).abs() <= bound).all()
    assert (got.double() - exact).abs().max() > 0


def test_tokens_are_rounded_each_by_itself():
    torch.manual_seed(0)
    layer, x = DynamicInt8Linear(torch.randn(8, 16), None), torch.randn(3, 16)
    alone = layer(x)
    beside = layer(torch.cat([x, 1e4 * torch.randn(1, 16), torch.full((1, 16), torch.nan)]))
    assert torch.allclose(beside[:3], alone, atol=0.2)
    assert beside[4].isnan().all()


def test_the_draft_is_not_changed_and_drafts_like_its_copy(pair: pairs.Pair):
    before = {name: (value.data_ptr(), value.clone()) for name, value in pair.draft.state_dict().items()}
    layers = [type(module) for module in pair.draft.modules()]
    quantized = quantize_draft(pair.draft)
    assert [type(module) for module in pair.draft.modules()] == layers
    for name, value in pair.draft.state_dict().items():
        assert value.data_ptr() == before[name][0]
        assert torch.equal(value, before[name][1])
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    assert quantized.get_input_embeddings().weight is pair.draft.get_input_embeddings().weight
    ids = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        p, q = (model(ids).logits.softmax(-1) for model in (pair.draft, quantized))
    assert (p - q).abs().sum(-1).mean() / 2 < 0.1  # total variation; a wrong scale or row gives more than 0.5
    assert not torch.equal(p, q)


@pytest.mark.parametrize("mode", ["lossless", "typical", "dropmatch", "cactus"])
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rules_run_on_it(pair: pairs.Pair, mode: str, dtype: str, do_sample: bool):
    problem = pair.tokenizer("Question: Tom has 3 apples and buys 4. How many has he? Answer:", return_tensors="pt")
    enable(pair.target)
    draft = quantize_draft(pair.draft, dtype)
    arguments = problem | {"max_new_tokens": 24, "do_sample": do_sample}
    torch.manual_seed(0)
    out = pair.target.generate(**arguments, assistant_model=draft, lossy_mode=mode, num_assistant_tokens=5)
    assert last_stats(pair.target).accepted > 0
    if mode == "lossless" and not do_sample:
        assert torch.equal(out, pair.target.generate(**arguments))


def test_what_cannot_be_quantised_is_refused(pair: pairs.Pair, tmp_path):
    with pytest.raises(LossyValueError, match=r"`dtype` has to be one of \['int8', 'int4'\], but is 'int3'"):
        quantize_draft(pair.draft, "int3")
    quantized = quantize_draft(pair.draft)
    with pytest.raises(LossyUnsupportedError, match="quantised already"):
        quantize_draft(quantized)
    with pytest.raises(LossyUnsupportedError, match="can't be saved; save the draft that it was made from"):
        quantized.save_pretrained(tmp_path)
    with torch.device("meta"):
        elsewhere = type(pair.draft)(pair.draft.config)
    with pytest.raises(LossyUnsupportedError, match="meta device"):
        quantize_draft(elsewhere)


def test_a_saved_draft_has_every_weight_at_the_nearest_of_255_levels(pair: pairs.Pair, tmp_path):
    save_int8_draft(pair.draft, tmp_path)
    saved, own = load_file(tmp_path / "model.safetensors"), pair.draft.state_dict()
    linear = {name for name in saved if saved[name].dtype is torch.int8}
    assert linear == {name for name in own if name.endswith("_proj.weight")}
    for name in linear:
        scale = saved.pop(f"{name}_scale")
        assert torch.allclose(scale[:, 0], own[name].abs().amax(1) / 127)
        assert ((saved.pop(name) * scale - own[name]).abs() <= 0.501 * scale).all()
    assert all(torch.equal(value, own[name]) for name, value in saved.items())
    assert set(saved) == set(own) - linear - {"lm_head.weight"}  # which is the embeddings' matrix
    described = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert (described["quant_method"], described["ignore"]) == ("compressed-tensors", ["lm_head"])
    assert getattr(pair.draft.config, "quantization_config", None) is None


@pytest.mark.parametrize("change", [quantize_draft, prepack])
def test_a_packed_draft_can_not_be_saved(pair: pairs.Pair, change, tmp_path):
    with pytest.raises(LossyUnsupportedError, match="`draft` has to be as loaded"):
        save_int8_draft(change(pair.draft), tmp_path / "new")
    assert not (tmp_path / "new").exists()
