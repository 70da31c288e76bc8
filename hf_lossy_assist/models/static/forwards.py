"""Forwards on static caches: copies of models that share everything with the user's but their decoder's forward.

Compiled ones are kept per model and input shape, as long as the model lives.
"""

from __future__ import annotations

import copy
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CompileConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from ...compat import CACHE, cache_of
from ...errors import LossyUnsupportedError

_forwards: weakref.WeakKeyDictionary[PreTrainedModel, dict[tuple[str, int, int], CompiledForward]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.RLock()


def path_to_decoder(model: PreTrainedModel) -> str | None:
    """Return the module name of the model's decoder; None where the decoder is no submodule."""
    decoder = model.get_decoder()
    return next((name for name, module in model.named_modules() if module is decoder and name), None)


def with_decoder_forward(model: PreTrainedModel, forward: Callable[..., Any]) -> PreTrainedModel:
    """Return a model like ``model`` whose decoder runs ``forward``; nothing is written to ``model``.

    Parameters, buffers, other modules and all hooks are shared. So the model still applies its head, soft-capping or
    scaling, and hooks on decoder or head still run.
    """
    decoder, path = model.get_decoder(), path_to_decoder(model)
    if path is None:
        raise LossyUnsupportedError(f"{type(model).__name__} has no decoder of its own")
    top = part = shallow(model)
    *parents, last = path.split(".")
    for name in parents:
        part._modules[name] = shallow(part._modules[name])
        part = part._modules[name]
    part._modules[last] = shallow(decoder)
    part._modules[last].__dict__["forward"] = forward
    return top


def shallow(module: nn.Module) -> nn.Module:
    """Return a copy that shares everything with ``module`` but can be given other children."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    return twin


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """A decoder's last states, with the other fields that a model may ask for."""

    router_logits: tuple[Tensor, ...] | None = None
    shared_kv_states: Any = None


class DecoderForward:
    """Stands in for a decoder's forward with ``run``, which returns states that its next run may overwrite.

    ``run`` always gets ``rows`` rows: missing rows repeat the last one, and their states are dropped.
    """

    def __init__(self, run: Callable[..., Any], rows: int = 1) -> None:
        self.run = run
        self.rows = rows

    def __call__(self, *args: Any, **inputs: Any) -> DecoderOutput:
        rows = next(len(x) for x in (*args, *inputs.values()) if isinstance(x, Tensor) and x.dim() > 1)
        if rows < self.rows:
            args = tuple(self._filled_up(x, rows) for x in args)
            inputs = {name: self._filled_up(x, rows) for name, x in inputs.items()}
        states = self.run(*args, **inputs)[:rows].clone()
        return DecoderOutput(last_hidden_state=states, **{CACHE: cache_of(inputs)})

    def _filled_up(self, value: Any, rows: int) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or len(value) != rows:
            return value
        return torch.cat([value, value[-1:].expand(self.rows - rows, *value.shape[1:])])


def eager_forward(model: PreTrainedModel, rows: int) -> PreTrainedModel:
    """Return a model like ``model`` that always runs ``rows`` rows, as a static cache needs."""
    decoder = model.get_decoder()
    return with_decoder_forward(
        model, DecoderForward(lambda *args, **inputs: decoder.forward(*args, **inputs)[0], rows)
    )


class CompiledForward:
    """A model whose decoder is compiled for inputs of one shape; nothing is written to the user's model.

    ``options`` go to ``torch.compile``. Inputs with fewer than ``rows`` rows are filled up.
    """

    def __init__(self, model: PreTrainedModel, options: Mapping[str, Any], rows: int = 1) -> None:
        compiled = torch.compile(_states_of(model.get_decoder()), **options)
        self.model = with_decoder_forward(model, DecoderForward(compiled, rows))
        self.runs = 0

    def __call__(self, **inputs: Any) -> Any:
        # CUDA graphs overwrite the last run's output, which nobody reads any more.
        torch.compiler.cudagraph_mark_step_begin()
        self.runs += 1
        return self.model(**inputs)


def compiled_forward(
    model: PreTrainedModel, config: CompileConfig | None, width: int, rows: int = 1
) -> CompiledForward:
    """Return the forward over ``rows`` rows of ``width`` tokens; its first run compiles it."""
    options = _options(config)
    key = repr(sorted(options.items(), key=lambda item: item[0])), width, rows
    with _lock:
        mine = _forwards.setdefault(model, {})
        if key not in mine:
            mine[key] = CompiledForward(model, options, rows)
        return mine[key]


def forget(model: PreTrainedModel) -> None:
    with _lock:
        _forwards.pop(model, None)


def _options(config: CompileConfig | None) -> dict[str, Any]:
    options = (CompileConfig() if config is None else config).to_dict()
    # Shapes are fixed: a second one must not make torch recompile the first for any shape.
    return options | {"dynamic": bool(options["dynamic"])}


def _states_of(decoder: nn.Module) -> Callable[..., Tensor]:
    # Skip transformers' decorators: they read a table of all models in the process, so loading another model would
    # recompile everything.
    forward = inspect.unwrap(type(decoder).forward)

    def states(*args: Any, **inputs: Any) -> Tensor:
        return forward(decoder, *args, **inputs)[0]

    # torch gives up after a few recompilations of one code object, so every compiled forward gets its own.
    own = FunctionType(states.__code__.replace(), states.__globals__, "states", None, states.__closure__)
    own.__kwdefaults__ = states.__kwdefaults__
    return own
