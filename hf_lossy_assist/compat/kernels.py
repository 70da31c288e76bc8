"""Kernels and hooks that torch has under private names."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def has_int8_kernel(device: str) -> bool:
    """Tell whether a kind of device multiplies by int8 weights without widening them."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_weight_int8pack_mm", device.upper())


def int8_product(rows: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """Return ``rows @ (values · scale).T``, ``values`` ``(out, in)`` of int8 and ``scale`` ``(out,)``."""
    return torch._weight_int8pack_mm(rows, values, scale)


def has_hooks(module: nn.Module) -> bool:
    """Tell whether hooks watch a module's own forwards; those by which transformers collects states don't count."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)
