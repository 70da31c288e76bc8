"""Forwards on static caches: copies of models that share everything with the user's but their decoder's forward.

Compiled ones are kept per model and input shape, as long as the model lives. One layer of each kind that a model has is
compiled, instead of the whole model: its layers share the code.
"""

from __future__ import annotations

import copy
import inspect
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CompileConfig, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from ...compat.caches import CACHE, LAYER_INDEX, cache_name, cache_of, count_in_all_layers, is_counted_once, one_layer
from ...compat.kernels import folding
from ...compat.models import attention_of
from ...errors import LossyUnsupportedError, warn_once
from .cache_slot import StaticCacheSlot, new_static_cache

Make = Callable[[Any], Callable[..., Any]]
"""Makes a function that runs a model, or one like it."""

TUNING = {"cuda": {"coordinate_descent_tuning": True, "combo_kernels": True}}
"""By type of device, what Inductor is asked for where the user asks for nothing: fewer and larger kernels."""

_forwards: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, Any]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def path_to_decoder(model: PreTrainedModel) -> str | None:
    """Return the module name of the model's decoder; None where the decoder is no submodule."""
    decoder = model.get_decoder()
    return next((name for name, module in model.named_modules() if module is decoder and name), None)


def has_replaced_forward(model: PreTrainedModel) -> bool:
    """Tell whether an instance has a forward of its own: the model, or a module around its decoder.

    ``torch.compile``, a decorator and accelerate's hooks bind it to that instance, so that a copy would run the latter.
    """
    parts = (path_to_decoder(model) or "").split(".")
    return any("forward" in vars(model.get_submodule(".".join(parts[:i]))) for i in range(len(parts)))


def decoder_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList] | None:
    """Return the decoder's list of layers with its name; None where the decoder does not hold them in one list."""
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    children = model.get_decoder().named_children()
    return next(((name, x) for name, x in children if isinstance(x, nn.ModuleList) and len(x) == total), None)


def with_decoder_forward(model: PreTrainedModel, forward: Callable[..., Any]) -> PreTrainedModel:
    """Return a model like ``model`` whose decoder runs ``forward``; nothing is written to ``model``."""
    decoder = shallow(model.get_decoder())
    decoder.__dict__["forward"] = forward
    return with_decoder(model, decoder)


def with_decoder(model: PreTrainedModel, decoder: nn.Module) -> PreTrainedModel:
    """Return a model like ``model`` with another ``decoder``; nothing is written to ``model``.

    Parameters, buffers, other modules and all hooks are shared. So the model still applies its head, soft-capping or
    scaling, and hooks on decoder or head still run.
    """
    if (path := path_to_decoder(model)) is None:
        raise LossyUnsupportedError(f"{type(model).__name__} has no decoder of its own")
    top = part = shallow(model)
    *parents, last = path.split(".")
    for name in parents:
        part._modules[name] = shallow(part._modules[name])
        part = part._modules[name]
    part._modules[last] = decoder
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

    ``run`` returns the last states, and the states that it reads between layers. It always gets ``rows`` rows: missing
    rows repeat the last one, and their states are dropped.
    """

    def __init__(self, run: Callable[..., tuple[Tensor, ...]], rows: int = 1) -> None:
        self.run = run
        self.rows = rows

    def __call__(self, *args: Any, **inputs: Any) -> DecoderOutput:
        rows = next(len(x) for x in (*args, *inputs.values()) if isinstance(x, Tensor) and x.dim() > 1)
        args = tuple(filled_up(x, rows, self.rows) for x in args)
        inputs = {name: filled_up(x, rows, self.rows) for name, x in inputs.items()}
        last, *read = (x[:rows].clone() for x in self.run(*args, **inputs))
        return DecoderOutput(last_hidden_state=last, hidden_states=tuple(read) or None, **{CACHE: cache_of(inputs)})


def filled_up(value: Any, rows: int, wanted: int) -> Any:
    """Return an input of ``rows`` rows with as many as ``wanted``: the last one is repeated."""
    if rows == wanted:
        return value
    if isinstance(value, dict):
        return {name: filled_up(x, rows, wanted) for name, x in value.items()}
    if not isinstance(value, Tensor) or value.dim() < 2 or len(value) != rows:
        return value
    return torch.cat([value, value[-1:].expand(wanted - rows, *value.shape[1:])])


class FixedForward:
    """Runs a module that is prepared for inputs of one shape."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.runs = 0

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        # CUDA graphs overwrite the last run's output, which nobody reads any more.
        torch.compiler.cudagraph_mark_step_begin()
        self.runs += 1
        return self.module(*args, **inputs)


class Compiling:
    """Prepares functions by compiling them; what is compiled is kept per model, as long as the model lives."""

    records = decorated = False
    title = "Compiling {} for {} tokens, once; a large model takes a minute or more"

    def __init__(self, config: CompileConfig | None) -> None:
        options = (CompileConfig() if config is None else config).to_dict()
        # Shapes are fixed: a second one must not make torch recompile the first for any shape. torch takes a mode or
        # options, and a configuration always has a mode.
        self.options = options | {"dynamic": bool(options["dynamic"])} | ({"mode": None} if options["options"] else {})
        self.key = repr(sorted(self.options.items(), key=lambda item: item[0]))

    def prepared(self, slot: StaticCacheSlot, key: Hashable, make: Callable[[], Any]) -> Callable[..., Any]:
        """Return what ``make`` makes: its parts are compiled."""
        return make()

    def part(self, model: nn.Module, slot: StaticCacheSlot, key: Hashable, make: Make) -> Callable[..., Any]:
        """Return what ``make`` makes, compiled in its first run; ``key`` says what shapes its inputs besides a cache's.

        Each gets its own code.
        """
        # Compiled forwards hold copies of modules, and don't know a head that replaced one.
        key = self.key, key, slot.capacity, slot.rows, tuple(map(id, model.modules()))
        with _lock:
            mine = _forwards.setdefault(model, {})
            if key not in mine:
                mine[key] = self._made(model, make)
            return mine[key]

    def _made(self, model: nn.Module, make: Make) -> Callable[..., Any]:
        return self._compiled(make(model), model)

    def _compiled(self, function: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
        plain = self.options["mode"] in (None, "default") and not self.options["options"]
        tunes = plain and self.options["backend"] == "inductor" and model.device.type in TUNING
        options = self.options | ({"mode": None, "options": TUNING[model.device.type]} if tunes else {})
        return torch.compile(_own_code(function, type(model).__name__), **options)


def whole(model: PreTrainedModel, decorated: bool) -> Callable[..., Any]:
    """Return a model's forward with its LM head; see :func:`states_of`."""
    if decorated:
        # Of the model itself a graph would be a reference, which keeps the model for ever.
        return shallow(model)
    states = states_of(model)

    def decode(*args: Any, **inputs: Any) -> DecoderOutput:
        return DecoderOutput(last_hidden_state=states(*args, **inputs)[0])

    return partial(inspect.unwrap(type(model).forward), with_decoder_forward(model, decode))


def forget(model: PreTrainedModel) -> None:
    with _lock:
        _forwards.pop(model, None)


def states_of(
    model: PreTrainedModel, reads: tuple[int, ...] = (), decorated: bool = False
) -> Callable[..., tuple[Tensor, ...]]:
    """Return a forward of the decoder that returns its last states and those that ``reads`` numbers.

    The states before each layer have its number; the last layer's own come after these, then the decoder's, normed.
    ``decorated`` keeps transformers' decorators. They read a table of all models in the process, so loading another
    model would recompile everything.
    """
    found: dict[int, Tensor] = {}
    decoder = _reading(model, reads, found) if reads else model.get_decoder()
    forward = decoder.forward if decorated else partial(inspect.unwrap(type(decoder).forward), decoder)

    def states(*args: Any, **inputs: Any) -> tuple[Tensor, ...]:
        last = forward(*args, **inputs)[0]
        read = [found.get(i, last) for i in reads]
        found.clear()
        return (last, *read)

    return states


def _reading(model: PreTrainedModel, reads: tuple[int, ...], found: dict[int, Tensor]) -> nn.Module:
    """Return a decoder that notes the states ``reads`` in ``found``."""
    if (listed := decoder_layers(model)) is None:
        raise LossyUnsupportedError(f"the decoder of {type(model).__name__} does not hold its layers in one list")
    name, layers = listed
    own = list(layers)
    for i in (x for x in reads if x <= len(own)):
        j = min(i, len(own) - 1)
        own[j] = _noting(own[j], i, i < len(own), found)
    twin = shallow(model.get_decoder())
    twin._modules[name] = nn.ModuleList(own)
    return twin


def _noting(layer: nn.Module, number: int, entering: bool, found: dict[int, Tensor]) -> nn.Module:
    twin, forward = shallow(layer), layer.forward

    def noted(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        output = forward(hidden_states, *args, **kwargs)
        found[number] = hidden_states if entering else output if isinstance(output, Tensor) else output[0]
        return output

    twin.__dict__["forward"] = noted
    return twin


def _own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function like ``function`` to be compiled.

    torch gives up after a few recompilations of one code object, so every compiled forward gets its own.
    """

    def compiled(*args: Any, **inputs: Any) -> Any:
        if not torch.compiler.is_compiling():
            warn_once(
                f"torch no longer compiles the forwards of {name}, which run uncompiled from here on: they were "
                "compiled anew too often (`TORCH_LOGS=recompiles` says why)"
            )
        return function(*args, **inputs)

    own = FunctionType(compiled.__code__.replace(), compiled.__globals__, "compiled", None, compiled.__closure__)
    own.__kwdefaults__ = compiled.__kwdefaults__
    return own


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
        state = None if listed is None else (attention_of(model), *map(_layer_kind, listed[1]))
        return super().part(model, slot, (key, state), make)

    def _made(self, model: nn.Module, make: Make) -> Callable[..., Any]:
        if (kinds := layer_kinds_of(model)) is None:
            return super()._made(model, make)
        code = {kind: self._compiled(_of_its_class, model) for kind in set(kinds)}
        configs: dict[int, PreTrainedConfig] = {}

        def fold(twin: nn.Module) -> None:
            """Let heads that share keys attend together in a module's copy, which then reads them once."""
            if isinstance(config := getattr(twin, "config", None), PreTrainedConfig):
                twin.__dict__["config"] = configs.setdefault(id(config), folding(config, model.device.type))

        return make(with_layers(model, [code[kind] for kind in kinds], fold))


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
    kinds = [_layer_kind(layer) for layer in listed[1]]
    # Adapters come and go in lists.
    own = any("forward" in vars(x) or hasattr(x, "active_adapters") for x in listed[1].modules())
    return None if own or len(set(kinds)) > _MOST_KINDS or not _run_apart(model, len(kinds)) else kinds


def _layer_kind(layer: nn.Module) -> Hashable:
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
        for way in (model, with_layers(model, [_of_its_class] * layers)):
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


def _of_its_class(layer: nn.Module, *args: Any, **inputs: Any) -> Any:
    return type(layer).forward(layer, *args, **inputs)
