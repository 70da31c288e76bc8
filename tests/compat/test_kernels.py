"""Attention that reads the keys of several heads once."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import pytest
import torch
from torch import nn

from hf_lossy_assist import prepack, quantize_draft
from hf_lossy_assist.compat import kernels
from hf_lossy_assist.compat.caches import CACHE, cache_of
from hf_lossy_assist.compat.kernels import FOLDED, folded_attention
from hf_lossy_assist.models.quantised import DynamicInt8Linear
from tests.tiny_models import tiny

HEADS, SHARED, SIZE = 6, 2, 4
KERNEL = "scaled_dot_product_attention"


def by_definition(query, key, value, mask, scaling) -> torch.Tensor:
    """softmax(q kᵀ · scale) v, head by head, ``(B, n, H, d)``."""
    out = torch.empty(query.shape[0], query.shape[2], HEADS, SIZE, dtype=query.dtype)
    for row, head in itertools.product(range(query.shape[0]), range(HEADS)):
        own = head // (HEADS // SHARED)
        scores = query[row, head] @ key[row, own].T * scaling
        if mask is not None:
            shown = mask[min(row, len(mask) - 1), 0]
            scores = scores.masked_fill(~shown, -torch.inf) if shown.dtype == torch.bool else scores + shown
        out[row, :, head] = scores.softmax(-1) @ value[row, own]
    return out


@pytest.mark.parametrize("kind", ["none", "bool", "float", "one row"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 3])
def test_states_are_those_of_every_head_alone(rows: int, count: int, kind: str):
    if kind == "none" and count > 1:
        pytest.skip("several tokens always have a mask, which tells their order")
    torch.manual_seed(count)
    length = 7
    query = torch.randn(rows, HEADS, count, SIZE, dtype=torch.float64)
    key, value = (torch.randn(rows, SHARED, length, SIZE, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(1 if kind == "one row" else rows, 1, count, length) < 0.6
    mask[..., 0] = True
    mask = {"none": None, "float": torch.zeros(mask.shape).masked_fill(~mask, -torch.inf).double()}.get(kind, mask)
    with patch.object(kernels, "sdpa_attention_forward") as usual:
        got, _ = folded_attention(nn.Module(), query, key, value, mask, scaling=0.3)
    usual.assert_not_called()
    assert got.is_contiguous()
    torch.testing.assert_close(got, by_definition(query, key, value, mask, 0.3))


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma3"])
@pytest.mark.parametrize("change", [prepack, quantize_draft])
def test_a_packed_model_attends_so_and_the_given_one_as_before(architecture: str, change):
    model = tiny(architecture)
    assert model.config._attn_implementation == "sdpa"
    packed = change(model)
    assert packed.config._attn_implementation == FOLDED
    assert model.config._attn_implementation == "sdpa"
    ids = torch.randint(3, 60, (3, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    calls = {"text": 10, "one token": 11, "more": 12}
    found, start = {}, 0
    past = {"usual": None, "folded": None}
    for name, end in calls.items():
        for way in past:
            packed.set_attn_implementation("sdpa" if way == "usual" else FOLDED)
            with torch.no_grad(), patch.object(kernels, KERNEL, wraps=getattr(kernels, KERNEL)) as used:
                out = packed(ids[:, start:end], attention_mask=mask[:, :end], use_cache=True, **{CACHE: past[way]})
            past[way] = cache_of(out)
            found[name, way] = out.logits
            assert used.call_count == (packed.config.num_hidden_layers if way == "folded" and name != "text" else 0)
        torch.testing.assert_close(found[name, "folded"], found[name, "usual"], atol=1e-5, rtol=1e-5)
        start = end


@pytest.mark.parametrize(
    ("case", "folds"),
    [
        ({}, True),
        ({"heads": SHARED}, False),  # nothing is shared
        ({"count": 7}, False),  # the whole text
        ({"mask_heads": HEADS}, False),
        ({"position_bias": torch.zeros(1, HEADS, 3, 7)}, False),
        ({"threads": 9}, False),  # which would have nothing to do
    ],
)
def test_other_calls_are_left_to_transformers(case: dict, folds: bool):
    count, heads = case.get("count", 3), case.get("heads", HEADS)
    query, key = torch.randn(1, heads, count, SIZE), torch.randn(1, SHARED, 7, SIZE)
    mask = torch.ones(1, case.get("mask_heads", 1), count, 7, dtype=torch.bool)
    options = {"position_bias": case["position_bias"]} if "position_bias" in case else {}
    with (
        patch.object(kernels, "sdpa_attention_forward", return_value=("usual", None)) as usual,
        patch.object(torch, "get_num_threads", return_value=case.get("threads", 1)),
    ):
        folded_attention(nn.Module(), query, key, key, mask, **options)
    assert usual.called != folds


def test_the_product_of_8_bits_is_asked_whether_its_sums_overflow():
    """The largest terms of 8 bits, by the layers' own product, are right exactly where the answer is no."""
    torch.manual_seed(0)
    layer = DynamicInt8Linear(torch.ones(32, 96), None)
    layer._levels, layer._zero, layer._middle = 127, 128, torch.tensor([[128.5]])
    layer._scale = torch.full((32,), 1 / 127**2)
    [row] = layer(torch.ones(3, 96)).unique_consecutive(dim=0)
    assert torch.allclose(row, torch.tensor(96.0)) is not kernels.sums_overflow()
