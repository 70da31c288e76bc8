"""Quantised caches: which of their tokens can be forgotten again."""

from __future__ import annotations

import sys
from typing import Any

from transformers import cache_utils as _caches
from transformers.cache_utils import QuantizedCache, QuantizedLayer

# Layers that quantise every token as it comes; older versions have none.
_AT_ONCE = tuple(getattr(_caches, name) for name in ("Fp8QuantizedLayer",) if hasattr(_caches, name))
_QUANTISED = ("_quantized_keys", "_quantized_values")
_RESIDUAL = ("keys", "values")


def quantises(cache: Any) -> bool:
    """Tell whether a cache holds its keys and values quantised."""
    return isinstance(cache, QuantizedCache)


def refusal_of_quantised(cache: QuantizedCache) -> str | None:
    """Say why no tokens of a quantised cache can be forgotten; None where some can."""
    if all(isinstance(layer, (QuantizedLayer, *_AT_ONCE)) for layer in cache.layers):
        return None
    kinds = sorted({type(layer).__name__ for layer in cache.layers})
    return f"a {type(cache).__name__} with layers {kinds} can't be rolled back; use a dynamic cache"


def forgettable(cache: Any) -> int:
    """Return over how many tokens a forward may be so that the last of them, or all, can be forgotten again.

    The first forward chooses the scales. Layers that quantise in groups keep the newest tokens as they came, until
    these are as many as the residual length says: then all are quantised together, and nothing is taken out again.
    """
    if not quantises(cache):
        return sys.maxsize
    return min(_room(layer) for layer in cache.layers)


def forget(cache: QuantizedCache, tokens: int) -> None:
    """Forget the last ``tokens`` tokens, which are forgettable."""
    for layer in cache.layers if tokens else ():
        layer.cumulative_length -= tokens
        for name in _QUANTISED if isinstance(layer, _AT_ONCE) else _RESIDUAL:
            held = getattr(layer, name)
            states, *scale = held if isinstance(held, tuple) else (held,)
            states = states[..., : states.shape[-2] - tokens, :]
            setattr(layer, name, (states, *scale) if scale else states)


def _room(layer: Any) -> int:
    if not layer.is_initialized:
        return 0
    if isinstance(layer, _AT_ONCE):
        return sys.maxsize
    held = layer.keys.shape[-2] if layer.keys.dim() == 4 else 0
    return max(0, layer.residual_length - 1 - held)
