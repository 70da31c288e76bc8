"""The kernel of a few new tokens sees what attention by definition sees, and a GPU's assembler takes it.

It needs Triton. ``TRITON_INTERPRET=1`` runs it on a CPU; without, it is only translated, for an H200.
"""

from __future__ import annotations

import os

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed", exc_type=ImportError)
kernel = pytest.importorskip("hf_lossy_assist.models.static.decoding_kernel", exc_type=ImportError)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="set TRITON_INTERPRET=1")


def by_definition(query, key, value, cos, sin, keys, values, start, mask, scaling):
    """Turn, write, and attend head by head; return what is seen, and the cache."""
    rows, count = query.shape[:2]
    _, shared, _, size = keys.shape
    keys, values = keys.clone(), values.clone()

    def turned(x):
        x = x.view(rows, count, -1, size)
        low, high = x.chunk(2, -1)
        return x * cos[:, :, None] + torch.cat([-high, low], -1) * sin[:, :, None]

    query, key, value = turned(query), turned(key), value.view(rows, count, -1, size)
    keys[:, :, start : start + count], values[:, :, start : start + count] = key.transpose(1, 2), value.transpose(1, 2)
    seen = torch.zeros_like(query)
    for head in range(query.shape[2]):
        own = head // (query.shape[2] // shared)
        scores = (query[:, :, head] @ keys[:, own].mT * scaling).masked_fill(~mask[:, 0], -torch.inf)
        seen[:, :, head] = scores.softmax(-1).nan_to_num() @ values[:, own]
    return seen.flatten(2), keys, values


def inputs(rows, count, group, size, capacity, start, kind, dtype=torch.float32, shared=2):
    torch.manual_seed(0)
    query, key, value = (torch.randn(rows, count, x * size, dtype=dtype) for x in (group * shared, shared, shared))
    keys, values = (torch.randn(rows, shared, capacity, size, dtype=dtype) for _ in range(2))
    angles = torch.randn(1 if kind == "one row's positions" else rows, count, size)
    angles = angles.expand(rows, -1, -1)
    slots, own = torch.arange(capacity), torch.arange(count)[:, None]
    mask = (slots <= start + own).expand(rows if kind != "one row's positions" else 1, 1, -1, -1).clone()
    if kind == "padding":
        mask[0, ..., : start // 2] = False
    if kind == "nothing seen":
        mask[0] = False
    if kind == "tree":  # no node sees another
        mask[..., start:] = slots[start:] == start + own
    keys[:, :, start + count :] = float("nan")  # what is not in use is not read
    return [query, key, value, angles.cos().to(dtype), angles.sin().to(dtype), keys, values, start, mask, 0.3]


CASES = [
    *((1, count, group, size, 64, 33, "") for count in (1, 5) for group in (1, 4, 8) for size in (64, 128)),
    (3, 2, 4, 64, 128, 70, "padding"), (2, 8, 8, 64, 64, 56, "tree"), (2, 3, 2, 64, 64, 1, "nothing seen"),
    (2, 7, 4, 128, 256, 200, "one row's positions"), (1, 4, 4, 64, 64, 0, ""), (1, 1, 1, 16, 64, 63, ""),
    (2, 3, 4, 64, 1024, 1000, "padding"), (1, 2, 2, 64, 2048, 700, ""), (1, 2, 2, 64, 1024, 3, ""),
]  # fmt: skip


@interpreted
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_sees_what_attention_by_definition_sees(case):
    given = inputs(*case)
    start, count = given[7], given[0].shape[1]
    exact, keys, values = by_definition(*(x.nan_to_num() if isinstance(x, torch.Tensor) else x for x in given))
    given[7] = torch.tensor(start)
    got = kernel.decode(*given)
    torch.testing.assert_close(got, exact, atol=2e-5, rtol=1e-5)
    for cache, wanted in ((given[5], keys), (given[6], values)):
        end = start + count
        torch.testing.assert_close(cache[:, :, :end], wanted[:, :, :end], atol=1e-6, rtol=1e-5)
        assert torch.equal(cache[:, :, end:].isnan().any(), torch.tensor(cache is given[5] and end < cache.shape[2]))


@pytest.mark.skipif(INTERPRETED, reason="TRITON_INTERPRET=1 is set")
@pytest.mark.parametrize(("count", "group", "size", "parts"), [(1, 4, 64, 1), (5, 4, 128, 8), (8, 8, 128, 1)])
def test_it_is_translated_for_an_h200(count, group, size, parts):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = dict.fromkeys(("query", "key", "value", "cos", "sin", "keys", "values"), "*bf16")
    types |= {"position": "*i64", "mask": "*i1", "scaling": "fp32", "sums_out": "*bf16" if parts == 1 else "*fp32"}
    sizes = {"SHARED": 8, "GROUP": group, "COUNT": count, "SIZE": size, "NEW": 16, "BLOCK": 64, "PARTS": parts}
    sizes["QUERIES"] = max(16, triton.next_power_of_2(group * count))
    if parts == 1:
        sizes |= {"best_out": None, "total_out": None}
    types |= dict.fromkeys(("best_out", "total_out"), "*fp32") | dict.fromkeys(sizes, "constexpr")
    names = kernel._kernel.arg_names
    source = ASTSource(kernel._kernel, {x: types.get(x, "i32") for x in names}, constexprs=sizes)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert ".target sm_90" in code.asm["ptx"]
    assert "mma" in code.asm["ptx"]  # matrix units multiply
    assert len(code.asm["cubin"]) > 1000
    assert code.metadata.shared <= 48 * 1024  # so several programs fit on a processor
