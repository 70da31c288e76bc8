"""Copies of a model with other modules in some places."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

from torch import nn
from transformers import PreTrainedModel


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
