"""A pretended GPU: tensors say ``cuda:0``, compute on the CPU, refuse mixed devices, and are counted.

It needs a CUDA build of torch, though no GPU: the CPU build's guards refuse tensors of another device.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from tests.waits import INDEXING, Counts

DEVICE = torch.device("cuda", 0)


class Pretended(Tensor):
    """A tensor on the pretended device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, _Mode.active.counts)

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def numpy(self) -> Any:
        raise TypeError("can't convert a tensor on cuda:0 to numpy")

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor.__getitem__(self, _with_tensors(at))

    def __setitem__(self, at: Any, value: Any) -> None:
        Tensor.__setitem__(self, _with_tensors(at), value)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    def __repr__(self, **kwargs: Any) -> str:
        return f"Pretended({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Pretended:
        return memo[id(self)] if id(self) in memo else Pretended(self.inner.clone())


def _with_tensors(at: Any) -> Any:
    """Copy lists in an index to the device, one after another, as torch does."""
    if isinstance(at, tuple):
        return tuple(_with_tensors(part) for part in at)
    return _tensor(list(at)).to(DEVICE) if isinstance(at, list | range) else at


def _is_cuda(device: Any) -> bool:
    return torch.device(device).type == "cuda"


def _run(func: Any, args: Any, kwargs: Any, counts: Counts) -> Any:
    name, kwargs = func.overloadpacket.__name__, dict(kwargs)
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    ours, others = ([x for x in tensors if isinstance(x, Pretended) is yes] for yes in (True, False))
    device, asynchronous = kwargs.get("device"), kwargs.get("non_blocking", False)
    here = bool(ours) if device is None else _is_cuda(device)
    if device is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    if name == "copy_":
        asynchronous = args[2] if len(args) > 2 else asynchronous
    if name == "_to_copy" and here != bool(ours):
        _transfer(counts, here, asynchronous)
    elif name == "copy_" and ours and others:
        _transfer(counts, isinstance(args[0], Pretended), asynchronous)
    elif ours or here:
        _check(name, args, [x for x in others if x.dim() > 0], counts)
        counts.operation(func, args, kwargs)
    args, kwargs = tree_map(lambda x: x.inner if isinstance(x, Pretended) else x, (args, kwargs))
    out = func(*args, **kwargs)
    if not here:
        return out
    known = {id(x.inner): x for x in ours}  # operations in place return what they were given

    def wrapped(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else Pretended(x)

    return tree_map(wrapped, out)


def _transfer(counts: Counts, to_device: bool, asynchronous: bool) -> None:
    if asynchronous:
        counts.note("copy" if to_device else "look", "copy without a wait")
    else:
        counts.note("wait", "to the device" if to_device else "to the host")


def _check(name: str, args: Any, others: list[Tensor], counts: Counts) -> None:
    """Refuse tensors of the host beside those of the device; numbers and indices are copied."""
    if name in INDEXING:
        indices = [x for x in args[1] if isinstance(x, Tensor) and not isinstance(x, Pretended)]
        counts.note("wait", "index on the host", len(indices)) if indices else None
        others = [x for x in others if not any(x is index for index in indices)]
    if others:
        raise RuntimeError(f"{name} has tensors of {[tuple(x.shape) for x in others]} on the CPU, others on cuda:0")


class _Mode(TorchDispatchMode):
    # Torch doesn't begin to use CUDA while a mode of this kind is active.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE
    active: _Mode

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self.counts)


class _Event:
    def __init__(self, **kwargs: Any) -> None:
        return

    def record(self, *args: Any) -> None:
        return

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 1.0


_generator = torch.Generator
_tensor, _as_tensor, _attention = torch.tensor, torch.as_tensor, nn.functional.scaled_dot_product_attention


def _make(data: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    if isinstance(data, Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    made = _tensor(data, dtype=dtype)
    return made if device is None else made.to(device)


def _attend(*args: Any, **kwargs: Any) -> Tensor:
    args, kwargs = tree_map(lambda x: x.inner if isinstance(x, Pretended) else x, (args, kwargs))
    return Pretended(_attention(*args, **kwargs))


@contextmanager
def pretended(counts: Counts, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let there be a GPU inside the block."""
    torch._C._ensureCUDADeviceGuardSet()
    for name, new in {"tensor": _make, "as_tensor": _make, "Generator": lambda device: _generator()}.items():
        patch.setattr(torch, name, new)
    patch.setattr(
        Tensor, "new_tensor", lambda x, data, **kw: _make(data, **{"dtype": x.dtype, "device": x.device, **kw})
    )
    patch.setattr(nn.functional, "scaled_dot_product_attention", _attend)
    for name, new in {"Event": _Event, "current_stream": lambda device=None: None}.items():
        patch.setattr(torch.cuda, name, new)
    _Mode.active = _Mode(counts)
    with _Mode.active:
        yield


def on_device(model: nn.Module) -> nn.Module:
    """Return a copy of a model on the pretended device."""
    moved, known = copy.deepcopy(model), {}
    for module in moved.modules():
        for held in (module._parameters, module._buffers):
            for name, value in held.items():
                if value is not None:
                    held[name] = known.setdefault(id(value), Pretended(value.data))
                    held[name]._is_param = held is module._parameters
    return moved
