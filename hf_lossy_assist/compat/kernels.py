"""Attention that reads the keys of several heads once, and what torch has under private names."""

from __future__ import annotations

import copy
import functools
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FOLDED = "sdpa_folded"
"""The name of :func:`folded_attention` among transformers' attention functions."""


def folded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as ``"sdpa"`` does: ``query`` ``(B, H, n, d)`` to keys and values ``(B, H', S, d)``.

    Where tokens follow a cached text, PyTorch reads the keys again for every head of a group, and ``"sdpa"`` may copy
    them first. Here the heads of a group become more queries ``(B, H', n·H/H', d)`` of the same keys. Sums run in
    another order, so results differ by rounding. On a CPU a group of heads is the work of one thread.
    """
    rows, heads, count, size = query.shape
    shared, length = key.shape[1:3]
    folds = (
        heads > shared
        and count < length
        and (count == 1 if attention_mask is None else attention_mask.shape[1] == 1)
        and options.get("position_bias") is None
        and (torch.compiler.is_compiling() or query.device.type != "cpu" or rows * shared >= torch.get_num_threads())
    )
    if not folds:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    folded, mask = query.reshape(rows, shared, -1, size), attention_mask
    if mask is not None:
        mask = mask[..., :length].expand(-1, -1, count, -1).repeat(1, 1, heads // shared, 1)
    states = scaled_dot_product_attention(folded, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return states.reshape(rows, heads, count, -1).transpose(1, 2).contiguous(), None


def fold_attention(model: PreTrainedModel) -> None:
    """Let a model of this package's own on a CPU attend by :func:`folded_attention` instead of ``"sdpa"``."""
    if model.config._attn_implementation == "sdpa" and model.device.type == "cpu":
        _register()
        model.set_attn_implementation(FOLDED)


def folding(config: PreTrainedConfig, device: str) -> PreTrainedConfig:
    """Return a configuration by which compiled modules attend by :func:`folded_attention` instead of ``"sdpa"``."""
    # A compiler can't ask for the number of threads.
    idle = device == "cpu" and getattr(config, "num_key_value_heads", 0) < torch.get_num_threads()
    if config._attn_implementation != "sdpa" or idle:
        return config
    _register()
    own = copy.copy(config)
    own._attn_implementation_internal = FOLDED
    return own


def _register() -> None:
    AttentionInterface.register(FOLDED, folded_attention)
    AttentionMaskInterface.register(FOLDED, sdpa_mask)


def has_int8_kernel(device: str) -> bool:
    """Tell whether a kind of device multiplies by int8 weights without widening them."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_weight_int8pack_mm", device.upper())


def int8_product(rows: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """Return ``rows @ (values · scale).T``, ``values`` ``(out, in)`` of int8 and ``scale`` ``(out,)``."""
    return torch._weight_int8pack_mm(rows, values, scale)


@functools.cache
def sums_overflow() -> bool:
    """Tell whether oneDNN's product of 8-bit integers adds two terms in 16 bits, as it does on a CPU without VNNI.

    The kernel is asked, not the CPU: the user may have told oneDNN to do without, and VNNI has two kinds.
    """
    values = torch.ops.onednn.qlinear_prepack(torch.full((16, 64), 127, dtype=torch.int8, device="cpu"), None)
    rows = torch.full((1, 64), 255, dtype=torch.uint8, device="cpu")
    scales = torch.ones(16, dtype=torch.float32, device="cpu")
    sums = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, 0, values, scales, torch.zeros_like(scales, dtype=torch.long), None, 1.0, 0,
        torch.float32, "none", [], "",
    )  # fmt: skip
    return bool((sums != 255 * 127 * 64).any())


def cpu_kernels() -> dict[str, bool]:
    """Tell which instructions PyTorch multiplies by on this CPU."""
    return {
        "AVX-512": torch.backends.cpu.get_cpu_capability() == "AVX512",
        "VNNI": torch.backends.mkldnn.is_available() and not sums_overflow(),
        "bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "AMX": torch.cpu._is_amx_tile_supported(),
    }


def clean_up(device: int, pool: Any) -> None:
    """Undo what a failed capture of a CUDA graph leaves behind: it raises before it has ended.

    While its pool is open, torch frees no memory. While the device's generator takes itself for captured, nothing can
    be drawn on the device; the next capture that ends well sets it free. Where not the capture failed, but the code
    in it, both have ended already.
    """
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")  # torch warns of an empty graph
