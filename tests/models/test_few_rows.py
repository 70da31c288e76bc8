"""Products with rounded weights are right, and one compiled kernel reads their weight once, as it is stored."""

from __future__ import annotations

import re

import torch
from torch._inductor.utils import run_and_get_code

from hf_lossy_assist.models.quantised import WeightOnlyInt8Linear

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
