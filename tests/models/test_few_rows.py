"""Products with rounded weights are right, and one compiled kernel reads their weight once, as it is stored."""

from __future__ import annotations

import re

import torch
from torch._inductor.utils import run_and_get_code

from hf_lossy_assist.models.quantised import WeightOnlyInt8Linear, products

OUT, IN = 48, 80


def test_rounded_weights_are_multiplied_as_they_are():
    values, row = torch.randint(-127, 128, (OUT, IN), dtype=torch.int8), torch.randn(IN)
    torch.testing.assert_close(
        products(row[None], values)[0].double(), values.double() @ row.double(), rtol=1e-5, atol=1e-3
    )


@torch.no_grad()
def test_a_compiler_makes_no_wide_copy_of_a_rounded_weight():
    """Nor a library's product, which would read one; one loop reads the weight for all rows."""
    torch._dynamo.reset()
    layer = WeightOnlyInt8Linear(torch.randn(OUT, IN, generator=torch.Generator().manual_seed(1)).bfloat16(), None)
    states = torch.randn(1, 3, IN, dtype=torch.bfloat16)
    got, (code,) = run_and_get_code(torch.compile(layer, dynamic=False), states)
    torch.testing.assert_close(got, layer(states), atol=0.05, rtol=0.05)
    assert "extern_kernels" not in code.split("def call(")[1]
    buffers = re.findall(r"empty_strided\w*\(\((\d+(?:, \d+)*)", code)
    assert buffers
    assert code.count("async_compile.cpp_pybinding") == 1
    assert all(torch.Size(map(int, x.split(", "))).numel() < OUT * IN for x in buffers)
