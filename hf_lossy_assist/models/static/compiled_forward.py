"""Compiled forwards, one per model and input shape, kept as long as the model lives."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from transformers import CompileConfig, PreTrainedModel

from .decoder_forward import DecoderForward, with_decoder_forward

_forwards: weakref.WeakKeyDictionary[PreTrainedModel, dict[tuple[str, int, int], CompiledForward]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.RLock()


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


def _states_of(decoder: torch.nn.Module) -> Callable[..., torch.Tensor]:
    # Skip transformers' decorators: they read a table of all models in the process, so loading another model would
    # recompile everything.
    forward = inspect.unwrap(type(decoder).forward)

    def states(*args: Any, **inputs: Any) -> torch.Tensor:
        return forward(decoder, *args, **inputs)[0]

    # torch gives up after a few recompilations of one code object, so every compiled forward gets its own.
    own = FunctionType(states.__code__.replace(), states.__globals__, "states", None, states.__closure__)
    own.__kwdefaults__ = states.__kwdefaults__
    return own
