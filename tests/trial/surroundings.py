"""What a caller has put around the models: a default dtype of the process, forwards of its own, weights elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from accelerate import cpu_offload
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from transformers import PreTrainedModel

from hf_lossy_assist.compat.models import innermost, unwrap


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let torch make tensors of ``dtype`` where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def forward_replaced(change: Callable[..., Callable[..., object]], model: PreTrainedModel) -> Iterator[None]:
    inner = innermost(model)
    inner.forward = change(inner.forward)
    try:
        yield
    finally:
        del inner.__dict__["forward"]


def _wrapped(forward: Callable[..., object]) -> Callable[..., object]:
    return functools.wraps(forward)(lambda *args, **kwargs: forward(*args, **kwargs))


@contextmanager
def _hooked(model: PreTrainedModel) -> Iterator[None]:
    inner = unwrap(model)
    add_hook_to_module(inner, ModelHook())
    try:
        yield
    finally:
        remove_hook_from_module(inner)


@contextmanager
def _offloaded(model: PreTrainedModel) -> Iterator[None]:
    inner = unwrap(model)
    cpu_offload(inner, execution_device=torch.device("cpu"))
    try:
        yield
    finally:
        remove_hook_from_module(inner, recurse=True)  # which loads the weights


SURROUNDINGS: Mapping[str, Callable[[PreTrainedModel], AbstractContextManager[None]]] = {
    "nothing": lambda model: nullcontext(),
    **{str(x): lambda model, x=x: default_dtype(x) for x in (torch.bfloat16, torch.float16, torch.float64)},
    "wrapped": partial(forward_replaced, _wrapped),
    "autocast": partial(forward_replaced, torch.autocast("cpu", enabled=False)),
    "hooked": _hooked,
    "offloaded": _offloaded,
}
"""By name, what is put around a call whose target is given."""
