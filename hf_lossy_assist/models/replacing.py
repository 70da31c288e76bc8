"""Copies of a model with other modules in some places."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import LossyUnsupportedError


class PackedModule(nn.Module):
    """Keeps its weights in an order that only CPUs read."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedModule:
        if fn(torch.empty(0)).device.type != "cpu":
            raise LossyUnsupportedError(
                "a model whose weights `prepack` or `quantize_draft` packed on the CPU stays there; move the model "
                "that it was made from"
            )
        return self


def sharing_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy modules and configuration, but not the tensors."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()


def with_replaced(model: PreTrainedModel, replacement: Callable[[nn.Module], nn.Module | None]) -> PreTrainedModel:
    """Return a copy that shares the tensors of ``model``; modules without a ``replacement`` stay."""
    changed = sharing_copy(model)
    for name, module in list(changed.named_modules()):
        if name and (new := replacement(module)) is not None:
            changed.set_submodule(name, new)
    return changed
