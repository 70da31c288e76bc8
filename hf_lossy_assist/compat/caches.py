"""Caches: making them, rolling them back or restoring them, and telling whose they are."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel
from transformers import cache_utils as _caches
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache, StaticLayer

from .models import forward_accepts, has_recurrent_state, layer_kinds

CACHE = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
)
"""The name of a cache among the inputs and outputs of ``generate()``; older versions have the second one."""
CACHE_NAMES = tuple(dict.fromkeys((CACHE, "past_key_values", "cache_params")))
"""The names that a cache may have among a model's inputs."""

# Layers that share other layers' keys; older versions have none.
EMPTY_LAYERS = tuple(getattr(_caches, name) for name in ("DummyLayer",) if hasattr(_caches, name))
# Layers of a static cache, rolled back by their position.
REWINDING_LAYERS = (StaticLayer, *EMPTY_LAYERS)


class FixedLayer(DynamicLayer):
    """A layer that does not grow with the text: the keys of an image, which every token attends to."""

    def crop(self, max_length: int) -> None:
        return


def new_cache(model: PreTrainedModel, like: Cache | None = None, prompt: int | None = None) -> Cache:
    """Return an empty cache for ``model`` that can be rolled back after any number of forwards.

    It is offloaded if ``like`` is; ``prompt`` is as in :func:`ready_for_rollback`. Sliding-window layers keep all
    tokens, since not every version can roll them back over several forwards; the attention mask applies the window.
    Recurrent states need :class:`CacheSnapshot`.
    """
    offloading = like is not None and is_offloaded_cache(like)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True), offloading=offloading)
    if not has_recurrent_state(model):
        for i, layer in enumerate(cache.layers):
            if type(layer) is _caches.DynamicSlidingWindowLayer:
                cache.layers[i] = DynamicLayer()
                cache.layers[i].sliding_window = layer.sliding_window  # see `attention_windows`
        ready_for_rollback(model, cache, prompt)
        cache.activate_past_recording()
    return EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache


def is_offloaded_cache(cache: Cache) -> bool:
    return bool(getattr(text_cache(cache), "offloading", False))


def empty_copy(cache: Cache) -> Cache:
    streams = [getattr(own, "prefetch_stream", None) for own in (cache, text_cache(cache))]
    return copy.deepcopy(cache, {id(stream): stream for stream in streams})


def attention_windows(model: PreTrainedModel, cache: Cache) -> list[int | None]:
    """Return how many keys each attending layer of ``model`` keeps for a forward over one token; None for all.

    Layers that share the keys of others keep as many as others of their kind.
    """
    kinds = layer_kinds(model)
    windows = {
        kind: getattr(layer, "sliding_window", None)
        for kind, layer in zip(kinds, text_cache(cache).layers, strict=False)  # some versions leave out empty layers
        if isinstance(layer, DynamicLayer)
    }
    return [windows[kind] for kind in kinds if kind in windows]


def cache_of(inputs: Mapping[str, Any]) -> Any:
    """Return the cache among a model's inputs, under any of its names, or None."""
    for name in CACHE_NAMES:
        if inputs.get(name) is not None:
            return inputs[name]
    return None


def cache_name(model: PreTrainedModel) -> str:
    """Return the name of a cache among the inputs of a model's forward."""
    for name in CACHE_NAMES:
        if forward_accepts(model, name):
            return name
    return CACHE


def tokens_in(cache: Cache | None) -> int:
    """Return how many tokens a cache holds; 0 without one, and if no layer counts them."""
    if cache is None:
        return 0
    own = text_cache(cache)
    for layer in own.layers:
        if hasattr(layer, "get_seq_length"):
            return int(own.get_seq_length())
    return 0


def ready_for_rollback(model: PreTrainedModel, cache: Any, prompt: int | None = None) -> None:
    """Let the layers of a dynamic cache that attend to images keep their keys when the text is rolled back.

    Those that keep a prompt whole are told the ``prompt``'s length: else they would keep a draft behind it, too.
    """
    for layer in getattr(cache, "layers", ()) if prompt is not None else ():
        if hasattr(layer, "set_prefill_length"):
            layer.set_prefill_length(prompt)
    looking = getattr(model.config.get_text_config(decoder=True), "cross_attention_layers", None) or ()
    for i in looking if isinstance(cache, DynamicCache) else ():
        if i < len(cache.layers) and type(cache.layers[i]) is DynamicLayer:
            fixed = FixedLayer()
            vars(fixed).update(vars(cache.layers[i]))
            cache.layers[i] = fixed


def text_cache(cache: Cache) -> Cache:
    """Return the part of a cache that grows with the text, without an encoder's states."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


LAYER_INDEX = "layer_idx"
"""The attribute by which modules know their layer's number in a cache."""


class UncountedLayer(StaticLayer):
    """A view of a layer, which writes where the layer does, but leaves counting to :func:`count_in_all_layers`."""

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        counter = self.cumulative_length
        self.cumulative_length = counter.clone()  # which a compiler drops, with what is added to it
        states = super().update(*args, **kwargs)
        self.cumulative_length = counter
        return states


def is_counted_once(cache: Cache) -> bool:
    """Tell whether the layers of a static cache, run apart, count a forward's tokens together: once they have keys."""
    ends = cache.layers[0], cache.layers[-1]  # layers get their keys in turn
    return all(type(layer) is StaticLayer and layer.is_initialized for layer in ends)


def one_layer(cache: Cache, number: int) -> Cache:
    """Return a cache that has only the layer ``number`` of ``cache``, as its first."""
    view, layer = copy.copy(cache), cache.layers[number]
    if is_counted_once(cache) and type(layer) is StaticLayer and layer.is_initialized:
        layer = copy.copy(layer)
        layer.__class__ = UncountedLayer
    view.layers = [layer]
    return view


def count_in_all_layers(cache: Cache, tokens: int) -> None:
    """Count what layers run apart have written, by one kernel for all."""
    lengths = [x.cumulative_length for x in cache.layers if type(x) is StaticLayer and x.is_initialized]
    torch._foreach_add_(lengths, tokens)


@contextmanager
def recording(cache: DynamicCache) -> Iterator[None]:
    """Let ``cache`` be rolled back inside the block."""
    own, recorded = text_cache(cache), []
    for layer in own.layers:
        recorded.append(getattr(layer, "record_past", None))
    own.activate_past_recording()
    try:
        yield
    finally:
        stop_recording(own, recorded)


def stop_recording(cache: Cache, recorded: Sequence[bool | None] = ()) -> None:
    """Let the layers of a cache record as they did before, by default not at all."""
    for i, layer in enumerate(text_cache(cache).layers):
        if hasattr(layer, "record_past"):
            layer.record_past = recorded[i] if i < len(recorded) else False


def rollback(cache: Cache, tokens: int) -> None:
    """Forget the last ``tokens`` tokens. Call it with 0 too: recording layers then shrink to their window."""
    if tokens > 0 or cache.get_seq_length() > 0:
        for layer in text_cache(cache).layers:
            if type(layer) is not DynamicLayer or layer.is_initialized:  # 5.18 can't crop a layer that holds nothing
                layer.crop(-tokens)


def obstacle_in_cache(model: PreTrainedModel, cache: Any, inputs: Mapping[str, Any]) -> str | None:
    """Say why ``cache`` can be neither rolled back nor, for a recurrent ``model``, restored; None if it can."""
    own, config = cache, model.config
    # Decoders to which cross-attention was added take both caches apart by themselves.
    added = getattr(config, "add_cross_attention", False)
    if isinstance(cache, EncoderDecoderCache):
        own = cache.self_attention_cache
    elif config.is_encoder_decoder or (inputs.get("encoder_hidden_states") is not None and not added):
        return (
            f"a {type(cache).__name__} alone would mix the text's keys with the encoder's; pass an "
            "EncoderDecoderCache(DynamicCache(), DynamicCache())"
        )
    if isinstance(own, _caches.StaticCache):
        return None  # rolled back by position, or replaced by a dynamic one
    if isinstance(own, _caches.QuantizedCache):
        return f"a {type(own).__name__} rounds tokens together and can't forget some of them; use a dynamic cache"
    if not isinstance(own, DynamicCache):
        return f"a {type(own).__name__} is not a DynamicCache"
    return None


def belongs_to_user(cache: Any) -> bool:
    """Tell whether a cache was passed to ``generate()``."""
    return getattr(cache, "_is_user_defined", False)


_GROWING = ("keys", "values")


class CacheSnapshot:
    """The content of a cache at one time, which can be restored any number of times.

    Growing keys and values are cropped; everything else is copied, since forwards write to it.
    """

    def __init__(self, cache: Cache) -> None:
        self._layers = [_held_by(layer) for layer in cache.layers]
        self._lengths = [_keys_in(layer) for layer in cache.layers]

    def restore(self, cache: Cache) -> None:
        del cache.layers[len(self._layers) :]
        for layer, held, length in zip(cache.layers, self._layers, self._lengths, strict=True):
            vars(layer).update(recursively_apply(Tensor.clone, held))
            if length is not None:
                for name in _GROWING:
                    setattr(layer, name, getattr(layer, name)[..., :length, :])


def _keys_in(layer: Any) -> int | None:
    """Return how many keys a layer that keeps all of them holds; None for other and empty layers."""
    grows = isinstance(layer, DynamicLayer) and not layer.is_sliding
    return layer.keys.shape[-2] if grows and layer.keys is not None and layer.keys.numel() else None


def _held_by(layer: Any) -> dict[str, Any]:
    cropped = _GROWING if _keys_in(layer) is not None else ()
    return recursively_apply(Tensor.clone, {name: x for name, x in vars(layer).items() if name not in cropped})
