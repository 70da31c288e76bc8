"""Products of a few rows are right, and one compiled kernel reads their weight once, as it is stored."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from hf_lossy_assist.models.quantised import FEW_ROWS, FewRowsLinear, WeightOnlyInt8Linear, products

OUT, IN = 48, 80


def few(bias: bool, dtype: torch.dtype) -> FewRowsLinear:
    torch.manual_seed(1)
    return FewRowsLinear(IN, OUT, bias=bias, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 4), (3, FEW_ROWS)])
@torch.no_grad()
def test_the_product_is_the_linear_layer_s(shape, bias, dtype):
    layer, states = few(bias, dtype), torch.randn(*shape, IN).to(dtype)
    exact = nn.functional.linear(states.double(), layer.weight.double(), layer.bias.double() if bias else None)
    got = layer(states)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


def test_rounded_weights_are_multiplied_as_they_are():
    values, row = torch.randint(-127, 128, (OUT, IN), dtype=torch.int8), torch.randn(IN)
    torch.testing.assert_close(
        products(row[None], values)[0].double(), values.double() @ row.double(), rtol=1e-5, atol=1e-3
    )


@pytest.mark.parametrize("kind", ["rounded", "linear"])
@torch.no_grad()
def test_a_compiler_makes_no_wide_copy_of_a_weight(kind):
    """Nor a library's product, which would read one; one loop reads the weight for all rows."""
    torch._dynamo.reset()
    layer = few(False, torch.bfloat16)
    layer = WeightOnlyInt8Linear(layer.weight, None) if kind == "rounded" else layer
    states = torch.randn(1, 3, IN, dtype=torch.bfloat16)
    got, (code,) = run_and_get_code(torch.compile(layer, dynamic=False), states)
    torch.testing.assert_close(got, layer(states), atol=0.05, rtol=0.05)
    assert "extern_kernels" not in code.split("def call(")[1]
    buffers = re.findall(r"empty_strided\w*\(\((\d+(?:, \d+)*)", code)
    assert buffers
    assert code.count("async_compile.cpp_pybinding") == 1
    assert all(torch.Size(map(int, x.split(", "))).numel() < OUT * IN for x in buffers)
