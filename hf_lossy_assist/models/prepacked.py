"""Models whose weights lie in memory as the CPU's kernels read them."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..compat.kernels import cpu_kernels, fold_attention
from ..errors import LossyUnsupportedError, LossyValueError
from .quantised import PackedModule, check_runs, dtype_of, with_replaced

_ROWS = 6
"""Rows for which the order is chosen: a round's tokens."""
_FILLED = {torch.bfloat16: _ROWS, torch.float32: 1}
"""By type, up to how many rows zeros fill up an input: in bfloat16, fewer than six rows take longer than six."""


class PrepackedLinear(PackedModule):
    """``x Wᵀ + b`` by oneDNN, with W in the order that its kernel reads."""

    def __init__(self, linear: nn.Linear, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        if weight is not None:
            self.weight = weight
        self._filled = _FILLED[linear.weight.dtype]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:-1].numel()
        if rows >= self._filled:
            return self._product(x)
        filled = nn.functional.pad(x.reshape(rows, -1), (0, 0, 0, self._filled - rows))
        return self._product(filled)[:rows].view(*x.shape[:-1], self.out_features)

    def _product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def _save_to_state_dict(self, *_args: object) -> NoReturn:
        raise LossyUnsupportedError("a model of `prepack` can't be saved; save the model that it was made from")


def prepack(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model like ``model`` whose linear layers read their weights in the order of the CPU's kernels.

    In bfloat16, PyTorch brings the weights of a linear layer into this order again in every forward pass over a few
    tokens, which costs as much as reading them. In float32 it multiplies by another library, which is slower for two
    and more tokens on some CPUs. Where heads share keys, PyTorch reads these again for each head; here they are read
    once. Sums run in another order, so logits differ by rounding.

    The given model is unchanged. The new one shares its embeddings, norms and LM head's weight; drop the given model to
    free the other weights. The new one can't be saved or trained.

    Parameters
    ----------
    model
        A target or a draft on a CPU, in bfloat16, or in float32 for CPUs without bfloat16 kernels.

    Raises
    ------
    LossyValueError
        When ``model`` is no model of transformers, or neither in bfloat16 nor in float32.
    LossyUnsupportedError
        When it is not on a CPU or quantised, in bfloat16 on a CPU that has no kernels for it, or reads weights of its
        layers by code of its own.

    Examples
    --------
    >>> from hf_lossy_assist import pairs, prepack
    >>> pair = pairs.load("arithmetic")
    >>> target = prepack(pair.target)
    >>> type(target.lm_head).__name__, type(pair.target.lm_head).__name__
    ('PrepackedLinear', 'Linear')
    """
    check_packable("model", model)
    head = getattr(model.get_output_embeddings(), "weight", None)

    def replacement(module: nn.Module) -> nn.Module | None:
        if type(module) is not nn.Linear:
            return None
        return PrepackedLinear(module, module.weight if module.weight is head else None)

    packed = with_replaced(model, replacement)
    check_runs("model", packed, model, "with prepacked weights")
    fold_attention(packed)
    return packed


def check_packable(name: str, model: Any) -> None:
    """Raise unless :func:`prepack` takes a ``model``, which errors call ``name``."""
    if not isinstance(model, PreTrainedModel):
        raise LossyValueError(f"`{name}` has to be a transformers model, but is {type(model).__name__}")
    if is_prepacked(model) or dtype_of(model) is not None or getattr(model, "hf_quantizer", None) is not None:
        raise LossyUnsupportedError(f"`{name}` is prepacked or quantised already; use it as it is")
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    if not layers:
        raise LossyUnsupportedError(f"`{name}` ({type(model).__name__}) has no linear layer to prepack")
    if places := {layer.weight.device.type for layer in layers} - {"cpu"}:
        raise LossyUnsupportedError(
            f"`{name}` has to be on a CPU, but weights are on {sorted(places)}; use it as it is, and a draft of "
            "`quantize_draft(draft, 'int8')` to read less"
        )
    dtypes = {layer.weight.dtype for layer in layers}
    if unknown := dtypes - _FILLED.keys():
        raise LossyValueError(
            f"`{name}` has to be in bfloat16 or float32, but has {sorted(map(str, unknown))}; load it in either"
        )
    if torch.bfloat16 in dtypes and not cpu_kernels()["bfloat16"]:
        raise LossyUnsupportedError(
            f"this CPU, or this build of PyTorch, has no bfloat16 kernels; load `{name}` in float32"
        )


def is_prepacked(model: nn.Module) -> bool:
    return any(isinstance(module, PrepackedLinear) for module in model.modules())
