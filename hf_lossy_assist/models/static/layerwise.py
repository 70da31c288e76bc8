"""Compiles one layer of each kind that a model has, instead of the whole model: its layers share the code."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CompileConfig, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from ...compat.caches import LAYER_INDEX, cache_name, count_in_all_layers, is_counted_once, one_layer
from ...compat.kernels import folding
from ...compat.models import attention_of
from .cache_slot import StaticCacheSlot, new_static_cache
from .forwards import Compiling, Make, decoder_layers, path_to_decoder, shallow, with_decoder

Change = Callable[[nn.Module], Any]
"""Changes a copy of a module, whose attributes, but not its tensors, are its own."""

_MOST_KINDS = 4  # more are compiled sooner as a whole
_PLAIN = {int, float, bool, str, type(None)}
_TOLERANCE = 1e-3  # of the largest logit: the same kernels read the same numbers


class CompilingLayers(Compiling):
    """Compiles a layer of each kind. What is around the layers, and models whose layers differ, are left to others."""

    title = "Compiling {} for {} tokens, once"

    def part(self, model: nn.Module, slot: StaticCacheSlot, key: Hashable, make: Make) -> Callable[..., Any]:
        # Layers are copied: what changes in theirs afterwards has to be copied anew.
        listed = decoder_layers(model) if isinstance(model, PreTrainedModel) else None
        state = None if listed is None else (attention_of(model), *map(_kind, listed[1]))
        return super().part(model, slot, (key, state), make)

    def _made(self, model: nn.Module, make: Make) -> Callable[..., Any]:
        if (kinds := layer_kinds_of(model)) is None:
            return super()._made(model, make)
        code = {kind: self._compiled(_forward, model) for kind in set(kinds)}
        return make(with_layers(model, [code[kind] for kind in kinds], Folding(model.device.type)))


class Folding:
    """Lets heads that share keys attend together in a module's copy, which then reads them once."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._configs: dict[int, PreTrainedConfig] = {}

    def __call__(self, twin: nn.Module) -> None:
        if isinstance(config := getattr(twin, "config", None), PreTrainedConfig):
            twin.__dict__["config"] = self._configs.setdefault(id(config), folding(config, self.device))


def compiling(config: CompileConfig | None) -> Compiling:
    """Return what compiles: layers, or the whole model where one graph is asked for."""
    return Compiling(config) if config is not None and config.fullgraph else CompilingLayers(config)


def layer_kinds_of(model: nn.Module) -> list[Hashable] | None:
    """Return each layer's kind, by its modules and their plain attributes; None where layers can't be run apart.

    A layer runs apart if it sees nothing but its own layer of the cache, and does not read its own number.
    """
    if not isinstance(model, PreTrainedModel) or path_to_decoder(model) is None:
        return None
    listed = decoder_layers(model)
    if listed is None or len(new_static_cache(model, 8).layers) != len(listed[1]):
        return None
    kinds = [_kind(layer) for layer in listed[1]]
    # Adapters come and go in lists.
    own = any("forward" in vars(x) or hasattr(x, "active_adapters") for x in listed[1].modules())
    return None if own or len(set(kinds)) > _MOST_KINDS or not _run_apart(model, len(kinds)) else kinds


def _kind(layer: nn.Module) -> Hashable:
    def plain(module: nn.Module) -> Hashable:
        return tuple((x, y) for x, y in vars(module).items() if type(y) in _PLAIN and x != LAYER_INDEX)

    tensors = (*layer.named_parameters(), *layer.named_buffers())
    modules = tuple((name, type(module), plain(module)) for name, module in layer.named_modules())
    return modules, tuple((name, x.shape, x.dtype) for name, x in tensors)


@torch.no_grad()
def _run_apart(model: PreTrainedModel, layers: int) -> bool:
    """Tell whether a model whose layers run apart says what it says otherwise."""
    try:
        logits = []
        for way in (model, with_layers(model, [_forward] * layers)):
            inputs = {"use_cache": True, cache_name(model): new_static_cache(model, 8)}
            ids = torch.arange(3, device=model.device)[None]
            logits.append([way(input_ids=x, **inputs).logits for x in (ids, ids[:, :1])][1])
        return bool((logits[0] - logits[1]).abs().max() <= _TOLERANCE * logits[0].abs().max())
    except Exception:  # whatever a layer's code raises where it finds no other layers
        return False


def with_layers(
    model: PreTrainedModel, forwards: list[Callable[..., Any]], change: Change = lambda _: None
) -> PreTrainedModel:
    """Return a model like ``model`` whose layers run ``forwards``, which get a changed copy of the layer first."""
    name, layers = decoder_layers(model)
    decoder = shallow(model.get_decoder())
    last = len(layers) - 1
    numbered = enumerate(zip(layers, forwards, strict=True))
    decoder._modules[name] = nn.ModuleList(_apart(layer, i, own, change, i == last) for i, (layer, own) in numbered)
    return with_decoder(model, decoder)


def _apart(layer: nn.Module, number: int, forward: Callable[..., Any], change: Change, is_last: bool) -> nn.Module:
    first, twin = _as_first(layer, change), shallow(layer)

    def run(*args: Any, **inputs: Any) -> Any:
        given = *args, *inputs.values()
        counted = [x for x in given if is_last and isinstance(x, Cache) and is_counted_once(x)]
        args = [one_layer(x, number) if isinstance(x, Cache) else x for x in args]
        inputs = {name: one_layer(x, number) if isinstance(x, Cache) else x for name, x in inputs.items()}
        output = forward(first, *args, **inputs)
        for cache in counted:
            count_in_all_layers(cache, next(x.shape[1] for x in given if isinstance(x, Tensor)))
        return output

    twin.__dict__["forward"] = run
    return twin


def _as_first(module: nn.Module, change: Change) -> nn.Module:
    """Return a copy that takes itself for a part of the first layer: torch compiles anew for another number."""
    twin = shallow(module)
    twin._modules.update({name: _as_first(x, change) for name, x in module._modules.items() if x is not None})
    if LAYER_INDEX in vars(twin):
        twin.__dict__[LAYER_INDEX] = 0
    change(twin)
    return twin


def _forward(layer: nn.Module, *args: Any, **inputs: Any) -> Any:
    return type(layer).forward(layer, *args, **inputs)
