"""Caches: making them, rolling them back, saying whose they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel
from transformers import cache_utils as _caches
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    StaticCache,
)

from .models import forward_accepts, has_recurrent_state
from .quantised_caches import forget, quantises, refusal_of_quantised

CACHE_NAMES = ("past_key_values", "cache_params")
"""What models call their cache."""

# Layers of other layers' keys, which hold nothing; older versions make none.
EMPTY_LAYERS = tuple(getattr(_caches, name) for name in ("DummyLayer",) if hasattr(_caches, name))
# Layers of a static cache that a position rolls back.
REWINDING_LAYERS = (_caches.StaticLayer, *EMPTY_LAYERS)


_SLIDING_LAYERS_ROLL_BACK = hasattr(DynamicSlidingWindowLayer, "activate_past_recording")


def new_cache(model: PreTrainedModel, like: Cache | None = None) -> DynamicCache:
    """Return an empty cache for ``model`` that can be rolled back after any number of forwards.

    Where ``like`` is offloaded, so is the new one.

    Layers of a sliding window keep everything: not every version can roll those back over several forwards, and
    the attention mask sees to the window. Recurrent states can only be brought back, see :class:`CacheSnapshot`.
    """
    offloading = like is not None and is_offloaded_cache(like)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True), offloading=offloading)
    if not has_recurrent_state(model):
        _keep_everything(cache)
        cache.activate_past_recording()
    return cache


def is_offloaded_cache(cache: Cache) -> bool:
    """Tell whether a cache keeps its layers elsewhere while they are not needed."""
    return bool(getattr(cache, "offloading", False))


def empty_copy(cache: Cache) -> Cache:
    """Return a copy of a cache that holds nothing yet."""
    streams = [getattr(own, "prefetch_stream", None) for own in (cache, text_cache(cache))]
    return copy.deepcopy(cache, {id(stream): stream for stream in streams})


def _keep_everything(cache: DynamicCache) -> None:
    cache.layers = [DynamicLayer() if type(x) is DynamicSlidingWindowLayer else x for x in cache.layers]


def cache_of(inputs: Mapping[str, Any]) -> Any:
    """Return the cache among a model's inputs, whatever the model calls it; None where there is none."""
    return next((inputs[name] for name in CACHE_NAMES if inputs.get(name) is not None), None)


def cache_name(model: PreTrainedModel) -> str:
    """Return what the model's forward calls its cache."""
    return next((name for name in CACHE_NAMES if forward_accepts(model, name)), CACHE_NAMES[0])


def tokens_in(inputs: Mapping[str, Any]) -> int:
    """Return how many tokens the cache among a model's inputs holds; 0 where none of its layers counts them."""
    cache = cache_of(inputs)
    own = None if cache is None else text_cache(cache)
    counts = own is not None and any(hasattr(layer, "get_seq_length") for layer in own.layers)
    return int(own.get_seq_length()) if counts else 0


def counts_tokens(model: PreTrainedModel) -> bool:
    """Tell whether a new cache for ``model`` has a layer that knows how many tokens it holds."""
    return any(isinstance(layer, DynamicLayer) for layer in new_cache(model).layers)


def ready_for_rollback(cache: Any) -> None:
    """Let the empty cache that ``generate()`` has just made keep what this version can't roll back otherwise."""
    fresh = type(cache) is DynamicCache and not belongs_to_user(cache)
    if fresh and not _SLIDING_LAYERS_ROLL_BACK:
        _keep_everything(cache)


def text_cache(cache: Cache) -> Cache:
    """Return the part of a cache that grows with the text, of one that holds an encoder's states too."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def new_cross_cache() -> EncoderDecoderCache:
    """Return an empty cache for a decoder that looks at an encoder's states."""
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


@contextmanager
def recording(cache: DynamicCache) -> Iterator[None]:
    """Let ``cache`` be rolled back inside the block; afterwards it behaves as it did before."""
    own = text_cache(cache)
    recorded = [getattr(layer, "record_past", None) for layer in own.layers]
    own.activate_past_recording()
    try:
        yield
    finally:
        for i, layer in enumerate(own.layers):
            if hasattr(layer, "record_past"):
                layer.record_past = recorded[i] if i < len(recorded) else False


def rollback(cache: Cache, tokens: int) -> None:
    """Forget the last ``tokens`` tokens. Recording layers also shrink to their window, so call it with 0 too."""
    if quantises(cache):
        forget(cache, tokens)
    elif tokens > 0 or (_SLIDING_LAYERS_ROLL_BACK and cache.get_seq_length() > 0):
        text_cache(cache).crop(-tokens)


def refusal_of_cache(model: PreTrainedModel, cache: Any) -> str | None:
    """Say why ``cache`` can't be rolled back or, where ``model`` has a recurrent state, be brought back; else None."""
    if isinstance(cache, StaticCache):
        return None  # by position, or a dynamic one takes its place: see `compiled`
    if quantises(cache):
        return refusal_of_quantised(cache)
    if isinstance(cache, EncoderDecoderCache):
        return refusal_of_cache(model, cache.self_attention_cache)
    if not isinstance(cache, DynamicCache):
        return f"a {type(cache).__name__} is not a DynamicCache"
    if has_recurrent_state(model):
        return None
    if not _SLIDING_LAYERS_ROLL_BACK and any(isinstance(layer, DynamicSlidingWindowLayer) for layer in cache.layers):
        return "this version of transformers can't roll back a sliding window; upgrade to 5.17 or newer"
    return None


def mark_user_cache(cache: Any) -> None:
    """Mark what was passed to ``generate()`` as a cache; newer versions do it themselves."""
    if isinstance(cache, _caches.Cache):
        cache._is_user_defined = True


def belongs_to_user(cache: Any) -> bool:
    """Tell whether a cache was passed to ``generate()``, which makes one otherwise."""
    return getattr(cache, "_is_user_defined", False)
