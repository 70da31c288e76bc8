"""Models that share everything with the user's, except for what their decoder's forward is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from ...errors import LossyUnsupportedError


def path_to_decoder(model: PreTrainedModel) -> str | None:
    """Return under which name the model's decoder is one of its modules; None where it isn't."""
    decoder = model.get_decoder()
    return next((name for name, module in model.named_modules() if module is decoder and name), None)


def with_decoder_forward(model: PreTrainedModel, forward: Callable[..., Any]) -> PreTrainedModel:
    """Return a model like ``model`` whose decoder runs ``forward``; nothing is written to ``model``.

    Parameters, buffers, other modules and all hooks are the very same objects. So whatever the model does to the
    decoder's states (head, soft-capping, scaling) stays its own business, and hooks on decoder or head still run.

    Raises
    ------
    LossyUnsupportedError
        When the model's decoder is not one of its modules.
    """
    decoder, path = model.get_decoder(), path_to_decoder(model)
    if path is None:
        raise LossyUnsupportedError(f"{type(model).__name__} has no decoder of its own")
    top = part = _shallow(model)
    *parents, last = path.split(".")
    for name in parents:
        part._modules[name] = _shallow(part._modules[name])
        part = part._modules[name]
    part._modules[last] = _shallow(decoder)
    part._modules[last].__dict__["forward"] = forward
    return top


def _shallow(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    return twin


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """A decoder's last states, and everything else that a model may ask its decoder's output for."""

    router_logits: tuple[Tensor, ...] | None = None
    shared_kv_states: Any = None


class DecoderForward:
    """Stands for a decoder's forward: ``run`` returns the states only.

    Parameters
    ----------
    run
        Takes the forward's keywords; what it returns may be overwritten when it runs again.
    rows
        How many rows it is run with: where there are fewer, the last is repeated, and what is said of that is dropped.
    """

    def __init__(self, run: Callable[..., Any], rows: int = 1) -> None:
        self.run = run
        self.rows = rows

    def __call__(self, *args: Any, past_key_values: Any = None, **inputs: Any) -> DecoderOutput:
        rows = next(len(x) for x in (*args, *inputs.values()) if isinstance(x, Tensor) and x.dim() > 1)
        if rows < self.rows:
            args = tuple(self._filled_up(x, rows) for x in args)
            inputs = {name: self._filled_up(x, rows) for name, x in inputs.items()}
        states = self.run(*args, past_key_values=past_key_values, **inputs)[:rows].clone()
        return DecoderOutput(last_hidden_state=states, past_key_values=past_key_values)

    def _filled_up(self, value: Any, rows: int) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or len(value) != rows:
            return value
        return torch.cat([value, value[-1:].expand(self.rows - rows, *value.shape[1:])])


def eager_forward(model: PreTrainedModel, rows: int) -> PreTrainedModel:
    """Return a model like ``model`` that is run with so many rows, as a cache of a fixed size wants it."""
    decoder = model.get_decoder()
    return with_decoder_forward(
        model, DecoderForward(lambda *args, **inputs: decoder.forward(*args, **inputs)[0], rows)
    )
