"""Moving the rows of caches, and keeping one path of a tree in them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from ..compat import EMPTY_LAYERS
from ..decoding.batch_layout import RowShift

MOVABLE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
"""Kinds of layers that hold one slot per token and nothing else."""


def movable(cache: Cache) -> bool:
    """Tell whether the rows of ``cache`` can be moved."""
    return all(type(layer) in (*MOVABLE_LAYERS, *EMPTY_LAYERS) for layer in cache.layers)


def _filled(cache: Cache) -> list[DynamicLayer]:
    """Return the layers that hold something: some use another one's keys."""
    return [layer for layer in cache.layers if layer.is_initialized and not isinstance(layer, EMPTY_LAYERS)]


def move_cache(cache: Cache, move: RowShift, slots: int) -> None:
    """Let ``cache`` hold the first ``slots`` slots of the new rectangle."""
    sources = move.sources(slots)
    for layer in _filled(cache):
        _move_layer(layer, move, sources)


def keep_path(cache: Cache, start: int, columns: Tensor) -> None:
    """Of what stands after the first ``start`` slots of a cache, keep only ``columns`` ``(B, k)``, in their order."""
    for layer in _filled(cache):
        begin = start - _dropped(layer)
        index = (columns + begin).to(layer.keys.device)[:, None, :, None]
        removed = layer.keys.shape[-2] - begin - columns.shape[1]
        for name in ("keys", "values"):
            states = getattr(layer, name)
            path = states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))
            setattr(layer, name, torch.cat([states[:, :, :begin], path], dim=2))
        if layer.is_sliding:
            layer.cumulative_length -= removed


def _dropped(layer: DynamicLayer) -> int:
    """Return how many slots a layer has let go of: those that have left its window."""
    return layer.cumulative_length - layer.keys.shape[-2] if layer.is_sliding else 0


def _move_layer(layer: DynamicLayer, move: RowShift, sources) -> None:
    kept, dropped = sources, _dropped(layer)
    if layer.is_sliding:  # everything that leaves the window may go
        kept = sources[:, -(layer.sliding_window - 1) :]
        layer.cumulative_length = sources.shape[1]
    kept = (kept - dropped).clamp(min=0).to(layer.keys.device)[:, None, :, None]
    rows = move.index.to(layer.keys.device)
    for name in ("keys", "values"):
        states = getattr(layer, name).index_select(0, rows)
        setattr(layer, name, states.gather(2, kept.expand(-1, states.shape[1], -1, states.shape[3])))
