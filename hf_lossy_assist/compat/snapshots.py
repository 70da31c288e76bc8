"""Snapshots of caches that can't be rolled back, only restored."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_KEYS = ("keys", "values")


class CacheSnapshot:
    """The content of a cache at one time, which can be restored any number of times.

    Growing keys and values are cropped; everything else is copied, since forwards write to it.
    """

    def __init__(self, cache: Cache) -> None:
        self._layers = [_held_by(layer) for layer in cache.layers]
        self._lengths = [_length(layer) for layer in cache.layers]

    def restore(self, cache: Cache) -> None:
        del cache.layers[len(self._layers) :]
        for layer, held, length in zip(cache.layers, self._layers, self._lengths, strict=True):
            vars(layer).update(_copied(held))
            if length is not None:
                for name in _KEYS:
                    setattr(layer, name, getattr(layer, name)[..., :length, :])


def _length(layer: Any) -> int | None:
    """Return how many keys a layer that keeps all of them holds; None for other and empty layers."""
    grows = isinstance(layer, DynamicLayer) and not layer.is_sliding
    return layer.keys.shape[-2] if grows and layer.keys is not None and layer.keys.numel() else None


def _held_by(layer: Any) -> dict[str, Any]:
    cropped = _KEYS if _length(layer) is not None else ()
    return _copied({name: value for name, value in vars(layer).items() if name not in cropped})


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return value
