"""Models whose weights cost less to read: rounded ones of drafts, and ones in the order of a CPU's kernels."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from itertools import chain
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..compat.kernels import cpu_kernels, fold_attention, has_int8_kernel, int8_product, sums_overflow
from ..compat.probe import ask, failure
from ..errors import LossyUnsupportedError, LossyValueError
from ..heads.identity import row_norms

_LEVELS = 127
_TINY = torch.finfo(torch.float32).tiny
_GROUP = 32
_X86 = ("AVX2", "AVX512")


class PackedModule(nn.Module):
    """Keeps its weights in an order that only CPUs read."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedModule:
        if fn(torch.empty(0)).device.type != "cpu":
            raise LossyUnsupportedError(
                "a model whose weights `prepack` or `quantize_draft` packed on the CPU stays there; move the model "
                "that it was made from"
            )
        return self


def sharing_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy modules and configuration, but not the tensors."""
    for name, module in model.named_modules():
        if type(vars(module).get("forward")) is FunctionType:
            raise LossyUnsupportedError(
                f"the forward of {name or 'the model'!r} in {type(model).__name__} has been replaced by a function, "
                "which would run the given model; change the model first, then replace the new one's forward"
            )
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()


def with_replaced(model: PreTrainedModel, replacement: Callable[[nn.Module], nn.Module | None]) -> PreTrainedModel:
    """Return a copy that shares the tensors of ``model``; modules without a ``replacement`` stay."""
    changed = sharing_copy(model)
    for name, module in list(changed.named_modules()):
        if name and (new := replacement(module)) is not None:
            changed.set_submodule(name, new)
    return changed


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a float32 weight ``(N, K)`` to int8; return it and the scales ``(N,)`` of its rows."""
    scale = weight.abs().amax(1) / _LEVELS
    scale = torch.where(scale > 0, scale, 1.0)  # a row of zeros stays one
    return (weight / scale[:, None]).round_().to(torch.int8).contiguous(), scale  # kernels read rows


class QuantisedLinear(nn.Module):
    """A linear layer whose weights ``(N, K)`` are rounded."""

    dtype: str
    compiles = False  # whether a compiler takes its kernel

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.row_norms = row_norms(weight)  # by which identities know the model
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """Return ``(R, N)`` the product of ``rows`` ``(R, K)`` with the weights."""

    def forward(self, states: Tensor) -> Tensor:
        out = self.product(states.reshape(-1, self.in_features))
        if self.bias is not None:
            out = out + self.bias
        return out.to(states.dtype).view(*states.shape[:-1], self.out_features)

    def _save_to_state_dict(self, *args: Any) -> None:
        raise LossyUnsupportedError(
            "a draft of `quantize_draft` can't be saved; save the draft that it was made from, and quantise it after "
            "loading"
        )


class DynamicInt8Linear(PackedModule, QuantisedLinear):
    """Rounds its input, too, each token by its largest entry, and multiplies integers; for x86 CPUs."""

    dtype = "int8"
    rounds_inputs = True  # which the probe of `compat` looks for

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._pack(*rounded(weight.detach().float()), weight.dtype)

    def _pack(self, values: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        # The kernel reads an input as x + zero.
        self._levels, self._zero = (_LEVELS // 2, 64) if sums_overflow() else (_LEVELS, 128)
        self._middle = torch.tensor([[self._zero + 0.5]], dtype=torch.float32)  # rounds, once the fraction is cut off
        self._packed = torch.ops.onednn.qlinear_prepack(values, None)
        self._scale, self._zeros = scale / self._levels, torch.zeros(len(scale), dtype=torch.long)

    def forward(self, states: Tensor) -> Tensor:
        if states.numel() != self.in_features:
            return super().forward(states)
        # Of one token, the kernel multiplies by the size, adds the bias, and gives the type.
        size = float(states.abs().amax())
        whole = torch.add(self._middle, states.view(1, -1), alpha=self._levels / size if size else 0.0)
        out = self._multiply(whole, size, self.bias, states.dtype)
        return out.view(*states.shape[:-1], self.out_features)

    def product(self, rows: Tensor) -> Tensor:
        size = rows.abs().amax(-1, keepdim=True).float()
        whole = torch.addcdiv(self._middle, rows.float(), size.clamp(min=_TINY), value=self._levels)
        return self._multiply(whole, 1.0, None, torch.float32) * size

    def _multiply(self, whole: Tensor, size: float, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        return torch.ops.onednn.qlinear_pointwise(
            whole.to(torch.uint8), size, self._zero, self._packed, self._scale, self._zeros, bias, 1.0, 0, dtype,
            "none", [], "",
        )  # fmt: skip


class NarrowInt8Linear(DynamicInt8Linear):
    """Reads its weights as they are for one or two tokens, whose entries it does not round.

    The product of integers takes some 60 µs to begin. In a layer no wider than its input, that is more than it saves.
    """

    def _pack(self, values: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        super()._pack(values, scale, dtype)
        self._values, self._sizes = values, scale.to(dtype)

    def forward(self, states: Tensor) -> Tensor:
        if states.numel() > 2 * self.in_features or states.dtype != self._sizes.dtype:
            return super().forward(states)
        rows = states.detach().reshape(-1, self.in_features).contiguous()
        out = int8_product(rows, self._values, self._sizes)
        if self.bias is not None:
            out += self.bias
        return out.view(*states.shape[:-1], self.out_features)


_FEW = 16
"""Rows up to which a product reads the rounded weights themselves: the kernel has no matrix units."""


def reads_int8(device: str, rows: int, compiling: bool) -> bool:
    """Tell whether a kernel of a kind of device multiplies so many rows by int8 weights, without widening these."""
    return device == "cuda" and not compiling and rows <= _FEW and has_int8_kernel(device)


FEW_ROWS = 8
"""More rows are left to the libraries' products, which have matrix units."""


class WeightOnlyInt8Linear(QuantisedLinear):
    """Reads its weights as they are where a device has a kernel for it, and else widens them for every product.

    A compiler fuses the widening with the products of a few rows, so that it reads no more either.
    """

    dtype = "int8"
    compiles = True

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        values, scale = rounded(weight.detach().float())
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)

    def product(self, rows: Tensor) -> Tensor:
        if reads_int8(rows.device.type, len(rows), torch.compiler.is_compiling()):
            return int8_product(rows.float(), self.values, self.scale)
        if torch.compiler.is_compiling() and len(rows) <= FEW_ROWS:
            # Each row by itself, in float32: a compiler fuses these with each other and with the widening, where a
            # library's product has to find the weight in memory, as wide as its rows.
            return torch.stack([(row.float() * self.values.float()).sum(-1) for row in rows]) * self.scale
        return nn.functional.linear(rows, self.values.to(rows.dtype)).float() * self.scale


class Int4Linear(PackedModule, QuantisedLinear):
    """Rounds every group of 32 weights of a row to 16 levels between their least and their largest."""

    dtype = "int4"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        groups = weight.detach().float().unflatten(1, (-1, _GROUP))
        least, largest = groups.aminmax(dim=-1)
        # The kernel computes (level - 8)·scale + middle, with scale and middle in the input's type.
        scale = ((largest - least) / 15).to(weight.dtype)
        scale = torch.where(scale > 0, scale, 1.0).to(weight.dtype)
        middle = (least + 8 * scale.float()).to(weight.dtype)
        levels = ((groups - middle.float()[..., None]) / scale.float()[..., None] + 8).round_().clamp_(0, 15)
        levels = levels.to(torch.int32).flatten(1)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        self._scales = torch.stack([scale, middle], dim=-1).transpose(0, 1).contiguous()

    def product(self, rows: Tensor) -> Tensor:
        rows = rows.to(self._scales.dtype)
        return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self._packed, _GROUP, self._scales)


def _int4(weight: Tensor, bias: Tensor | None) -> QuantisedLinear:
    fits = weight.shape[0] % 16 == 0 and weight.shape[1] % _GROUP == 0
    return Int4Linear(weight, bias) if fits else _int8(weight, bias)


def _int8(weight: Tensor, bias: Tensor | None) -> QuantisedLinear:
    packs = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() in _X86
    if not packs or weight.device.type != "cpu":
        return WeightOnlyInt8Linear(weight, bias)
    narrow = weight.shape[0] <= weight.shape[1] and weight.shape[1] % _GROUP == 0  # the kernel reads 16 at once
    return (NarrowInt8Linear if narrow else DynamicInt8Linear)(weight, bias)


_LAYERS: Mapping[type[nn.Module], Callable[[nn.Module], Tensor]] = {
    nn.Linear: lambda layer: layer.weight,
    Conv1D: lambda layer: layer.weight.T,
}
"""Kinds of layers that are quantised, each with its weight ``(N, K)``."""

DTYPES: Mapping[str, Callable[[Tensor, Tensor | None], QuantisedLinear]] = {"int8": _int8, "int4": _int4}


def quantize_draft(draft: PreTrainedModel, dtype: str = "int8") -> PreTrainedModel:
    """Return a draft with rounded weights: its linear layers, and its LM head.

    Every rule stays exact, because q is the quantised draft's own distribution.

    - ``"int8"``: each row of a weight has one scale, max|w| / 127. On x86 CPUs the inputs are rounded to 8 bits, too,
      one scale per token; on CUDA a kernel reads the rounded weights; elsewhere, and for more than 16 tokens, they are
      widened for every product. Compiled, up to 8 tokens read no more either.
    - ``"int4"``, on CPUs only: 16 levels for each group of 32 weights; int8 in layers whose sizes don't fit.

    The given draft is unchanged. The new one shares its embeddings and norms, so ``draft = quantize_draft(draft)``
    frees all weights that were rounded. It can't be saved or trained.

    Parameters
    ----------
    draft
        A decoder with linear layers, on the device where it will run.
    dtype
        ``"int8"`` or ``"int4"``.

    Raises
    ------
    LossyValueError
        When ``dtype`` is unknown, or the draft is no model of transformers or has no linear layers.
    LossyUnsupportedError
        When the draft is quantised already, has no weights in memory, does not run with rounded ones, is an EAGLE-3
        or DFlash head, or is not on a CPU as ``"int4"`` needs it.

    Examples
    --------
    >>> from hf_lossy_assist import pairs, quantize_draft
    >>> pair = pairs.load("arithmetic")
    >>> draft = quantize_draft(pair.draft)
    >>> draft.lm_head.dtype, pair.draft.lm_head.weight.dtype
    ('int8', torch.float32)
    """
    if dtype not in DTYPES:
        raise LossyValueError(f"`dtype` has to be one of {list(DTYPES)}, but is {dtype!r}")
    check_changeable("draft", draft)
    layers = [module for module in draft.modules() if type(module) in _LAYERS]
    if dtype_of(draft) is not None or getattr(draft, "hf_quantizer", None) is not None:
        raise LossyUnsupportedError(
            "`draft` is quantised already; quantise the draft that it was made from, or leave it as it is"
        )
    if not layers:
        raise LossyValueError(f"`draft` has to have linear layers, but {type(draft).__name__} has none")
    if any(layer.weight.is_meta for layer in layers):
        raise LossyUnsupportedError(
            "`draft` has to have its weights in memory, but some are on the meta device or offloaded; load it whole"
        )
    if dtype == "int4" and any(layer.weight.device.type != "cpu" for layer in layers):
        raise LossyUnsupportedError(
            f"`dtype` {dtype!r} is for drafts on a CPU, but `draft` is not; use 'int8', or load the draft with a "
            "`quantization_config` for 4 bits, such as transformers' TorchAoConfig"
        )

    ask(draft)  # what it bears, its copy bears: rounded inputs would hide it

    def replacement(module: nn.Module) -> nn.Module | None:
        weight = _LAYERS.get(type(module))
        return None if weight is None else DTYPES[dtype](weight(module), module.bias)

    quantised = with_replaced(draft, replacement)
    check_runs("draft", quantised, draft, "with rounded weights")
    fold_attention(quantised)
    return quantised


def check_runs(name: str, changed: PreTrainedModel, source: PreTrainedModel, how: str) -> None:
    """Raise where a changed copy of a model does not run and its source does."""
    error = failure(changed)
    if error is not None and repr(error) != repr(failure(source)):
        raise LossyUnsupportedError(
            f"`{name}` ({type(source).__name__}) does not run {how}, perhaps as code of its own reads them "
            f"({type(error).__name__}: {error}); use it as it is, in float32 or bfloat16"
        )


def check_changeable(name: str, model: Any) -> None:
    """Raise unless a ``model``, which errors call ``name``, is one of transformers, whose modules can be replaced."""
    if hasattr(model, "d2t"):
        raise LossyUnsupportedError(
            f"`{name}` is a head on the target's states, as EAGLE-3's are, which is small already; pass a draft model"
        )
    if not isinstance(model, PreTrainedModel):
        raise LossyValueError(f"`{name}` has to be a transformers model, but is {type(model).__name__}")


def can_be_compiled(model: nn.Module) -> bool:
    """Tell whether all rounded layers of a model can be compiled."""
    return all(module.compiles for module in model.modules() if isinstance(module, QuantisedLinear))


def dtype_of(model: nn.Module) -> str | None:
    """Return what :func:`quantize_draft` rounded a model's weights to, if it did."""
    return next((module.dtype for module in model.modules() if isinstance(module, QuantisedLinear)), None)


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
    check_changeable(name, model)
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
