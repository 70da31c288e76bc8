"""Drafts with int8 weights, and the one compiled kernel that reads these."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from hf_lossy_assist import (
    LossyUnsupportedError,
    LossyValueError,
    last_stats,
    pairs,
    prepack,
    quantize_draft,
    trim_draft_vocabulary,
)
from hf_lossy_assist.compat.kernels import sums_overflow
from hf_lossy_assist.models import quantised
from hf_lossy_assist.models.quantised import (
    DTYPES,
    DynamicInt8Linear,
    Int4Linear,
    NarrowInt8Linear,
    WeightOnlyInt8Linear,
    can_be_compiled,
    reads_int8,
    rounded,
)
from tests.architectures import made
from tests.tiny_models import tiny


def _exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "levels"),
    [(DynamicInt8Linear, 127), (NarrowInt8Linear, 127), (WeightOnlyInt8Linear, 127), (Int4Linear, 7.5)],
)
@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1)])
def test_errors_stay_within_half_a_step_of_weights_and_inputs(monkeypatch, kind, levels, overflow, shape, bias, dtype):
    if not overflow and sums_overflow():
        pytest.skip("sums of two products of 8 bits overflow on this CPU, or oneDNN is told not to use VNNI")
    monkeypatch.setattr(quantised, "sums_overflow", lambda: overflow)
    torch.manual_seed(3)
    linear = nn.Linear(64, 48, bias=bias).to(dtype)
    x = torch.randn(*shape, 64, dtype=dtype) * torch.tensor([0.01, 1.0, 100.0], dtype=dtype)[: shape[0], None, None]
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


@pytest.mark.parametrize(
    ("device", "rows", "compiling", "kernels", "reads"),
    [
        ("cuda", 1, False, {"CUDA"}, True),
        ("cuda", 16, False, {"CUDA"}, True),
        ("cuda", 17, False, {"CUDA"}, False),
        ("cuda", 1, True, {"CUDA"}, False),  # the compiler fuses the widening: see test_few_rows
        ("cuda", 1, False, set(), False),  # an older torch
        ("xpu", 1, False, {"CUDA"}, False),
        ("cpu", 1, False, {"CPU", "CUDA"}, False),  # x86 has a layer of its own, which is faster
    ],
)
def test_where_a_kernel_reads_rounded_weights(monkeypatch, device, rows, compiling, kernels, reads):
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: key in kernels)
    assert reads_int8(device, rows, compiling) is reads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_for_rounded_weights_gives_their_product(monkeypatch, dtype):
    """As on a GPU, by the CPU's kernel of the same name; and layers without a packed order can be compiled."""
    torch.manual_seed(4)
    layer, x = WeightOnlyInt8Linear(torch.randn(64, 32), torch.randn(64)), torch.randn(3, 32, dtype=dtype)
    exact = _exact(x, layer.values * layer.scale[:, None].double(), layer.bias)
    monkeypatch.setattr(quantised, "reads_int8", lambda *_: True)
    torch.testing.assert_close(layer(x).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
    assert can_be_compiled(layer)
    assert not can_be_compiled(DynamicInt8Linear(torch.randn(64, 32), None))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_layers_do_not_round_one_or_two_tokens(dtype, bias):
    torch.manual_seed(4)
    linear, x = nn.Linear(64, 48, bias=bias).to(dtype), torch.randn(1, 3, 64, dtype=dtype)
    layer, wide = NarrowInt8Linear(linear.weight, linear.bias), DynamicInt8Linear(linear.weight, linear.bias)
    values, scale = rounded(linear.weight.detach().float())
    exact = _exact(x, values * scale[:, None], linear.bias)
    bounds = {"rtol": 3 * torch.finfo(dtype).eps, "atol": 1e-2 if dtype is torch.bfloat16 else 1e-5}
    for shape in ((1, 1), (1, 2), (2, 1)):
        count = max(shape)
        got = layer(x[:, :count].reshape(*shape, 64))
        torch.testing.assert_close(got.view(1, count, 48).double(), exact[:, :count], **bounds)
    assert torch.equal(layer(x), wide(x))
    assert not torch.equal(layer(x[:, :1]), wide(x[:, :1]))
    assert not layer(x[:, :1].clone().requires_grad_()).requires_grad
    half = x[:, :1].half()  # not the weights' own type
    assert torch.equal(layer(half), wide(half))


@pytest.mark.parametrize(
    ("out", "into", "kind"),
    [(64, 64, NarrowInt8Linear), (32, 64, NarrowInt8Linear), (96, 64, DynamicInt8Linear), (20, 40, DynamicInt8Linear)],
)
def test_the_kernel_of_few_tokens_is_for_layers_no_wider_than_their_input(monkeypatch, out, into, kind):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert type(DTYPES["int8"](torch.randn(out, into), None)) is kind


def test_tokens_are_rounded_each_by_itself():
    torch.manual_seed(0)
    layer, x = DynamicInt8Linear(torch.randn(8, 16), None), torch.randn(3, 16)
    alone = layer(x)
    beside = layer(torch.cat([x, 1e4 * torch.randn(1, 16), torch.full((1, 16), torch.nan)]))
    assert torch.allclose(beside[:3], alone, atol=0.2)
    assert beside[4].isnan().all()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", [DynamicInt8Linear, NarrowInt8Linear])
def test_what_is_no_number_stays_none_and_zeros_give_the_bias(kind, count):
    layer = kind(torch.randn(8, 16), bias := torch.randn(8))
    assert torch.equal(layer(torch.zeros(count, 16)), bias.expand(count, -1))
    for wrong in (torch.nan, torch.inf):
        assert not layer(torch.full((count, 16), wrong)).isfinite().any()


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


@pytest.mark.parametrize(("mode", "dtype"), [("lossless", "int8"), ("lossless", "int4"), ("sprinter", "int8")])
def test_it_drafts(pair: pairs.Pair, mode: str, dtype: str):
    problem = pair.tokenizer("Question: Tom has 3 apples and buys 4. How many has he? Answer:", return_tensors="pt")
    draft = quantize_draft(pair.draft, dtype)
    arguments = problem | {"max_new_tokens": 24, "do_sample": False}
    settings = {"assistant_model": draft, "lossy_mode": mode, "num_assistant_tokens": 5}
    if mode == "sprinter":
        settings["lossy_head"] = pair.heads["verifier"]
    out = pair.target.generate(**arguments, **settings)
    assert last_stats(pair.target).accepted > 0
    if mode == "lossless":
        assert torch.equal(out, pair.target.generate(**arguments))


@pytest.mark.parametrize("change", [quantize_draft, prepack, lambda model: trim_draft_vocabulary(model, range(40))])
@pytest.mark.parametrize("whose", ["", "model"])
def test_a_copy_that_would_run_the_given_model_is_refused(change, whose: str):
    model = tiny()
    part = model.get_submodule(whose)
    part.forward = torch.compile(part.forward, backend="eager")
    with pytest.raises(LossyUnsupportedError, match=f"the forward of '{whose or 'the model'}' in LlamaForCausalLM"):
        change(model)


@pytest.mark.parametrize("change", [quantize_draft, prepack])
@pytest.mark.parametrize("name", ["deepseek_v32", "falcon_mamba", "hunyuan_v1_moe", "t5"])
def test_a_model_that_reads_its_layers_weights_itself_is_refused_by_name(name: str, change):
    model = made(name).float()
    with pytest.raises(LossyUnsupportedError, match=rf"{type(model).__name__}\) does not run with .*'weight'"):
        change(model)


def test_what_cannot_be_quantised_is_refused(pair: pairs.Pair, tmp_path):
    with torch.device("meta"):
        elsewhere = type(pair.draft)(pair.draft.config)
    for error, named, call in (
        (LossyValueError, "`dtype`", lambda: quantize_draft(pair.draft, "int3")),
        (LossyUnsupportedError, "quantised already", lambda: quantize_draft(quantize_draft(pair.draft))),
        (LossyUnsupportedError, "saved", lambda: quantize_draft(pair.draft).save_pretrained(tmp_path)),
        (LossyUnsupportedError, "meta", lambda: quantize_draft(elsewhere)),
    ):
        with pytest.raises(error, match=named):
            call()


OUT, IN = 48, 80


def rounded_layer() -> WeightOnlyInt8Linear:
    return WeightOnlyInt8Linear(torch.randn(OUT, IN, generator=torch.Generator().manual_seed(1)).bfloat16(), None)


def test_rounded_weights_are_multiplied_as_they_are(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    layer, row = rounded_layer(), torch.randn(IN)
    torch.testing.assert_close(
        (layer.product(row[None])[0] / layer.scale).double(), layer.values.double() @ row.double(), rtol=1e-5, atol=1e-3
    )


@torch.no_grad()
def test_a_compiler_makes_no_wide_copy_of_a_rounded_weight():
    """Nor a library's product, which would read one; one loop reads the weight for all rows."""
    torch._dynamo.reset()
    layer = rounded_layer()
    states = torch.randn(1, 3, IN, dtype=torch.bfloat16)
    got, (code,) = run_and_get_code(torch.compile(layer, dynamic=False), states)
    torch.testing.assert_close(got, layer(states), atol=0.05, rtol=0.05)
    assert "extern_kernels" not in code.split("def call(")[1]
    buffers = re.findall(r"empty_strided\w*\(\((\d+(?:, \d+)*)", code)
    assert buffers
    assert code.count("async_compile.cpp_pybinding") == 1
    assert all(torch.Size(map(int, x.split(", "))).numel() < OUT * IN for x in buffers)
