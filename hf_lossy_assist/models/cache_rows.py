"""Moves the rows of a cache, and keeps one path of a tree in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from ..compat import EMPTY_LAYERS, FixedLayer
from ..core.texts import RowShift

# These hold one slot per token and nothing else, or what stays as it is.
_MOVABLE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, FixedLayer, *EMPTY_LAYERS)


def movable(cache: Cache) -> bool:
    return all(type(layer) in _MOVABLE_LAYERS for layer in cache.layers)


def move_cache(cache: Cache, move: RowShift, slots: int) -> None:
    """Let ``cache`` hold the first ``slots`` slots of the new rectangle."""
    sources = move.sources(slots)
    for layer in cache.layers:
        if isinstance(layer, FixedLayer) and layer.is_initialized:
            rows = move.index.to(layer.keys.device)
            layer.keys, layer.values = layer.keys.index_select(0, rows), layer.values.index_select(0, rows)
    for layer in _filled(cache):
        kept, dropped = sources, _dropped(layer)
        if layer.is_sliding:  # older slots have left the window
            kept = sources[:, -(layer.sliding_window - 1) :]
            layer.cumulative_length = slots
        rows, kept = (x.to(layer.keys.device) for x in (move.index, (kept - dropped).clamp(min=0)))
        layer.keys, layer.values = slots_of((layer.keys, layer.values), rows, kept)


def slots_of(states: Sequence[Tensor], rows: Tensor, kept: Tensor) -> list[Tensor]:
    """Return of each ``(B, H, S, d)`` the slots ``kept`` ``(B', S')`` of the given rows ``(B',)``."""
    _, heads, length, _ = states[0].shape
    # Whole states are copied in one pass, which takes a tenth of the time of `gather`.
    first = rows[:, None] * heads + torch.arange(heads, device=rows.device)
    at = (first[:, :, None] * length + kept[:, None]).flatten()
    return [x.reshape(-1, x.shape[3]).index_select(0, at).view(len(rows), heads, -1, x.shape[3]) for x in states]


def keep_path(cache: Cache, start: int, columns: Tensor) -> None:
    """After the first ``start`` slots, keep only the slots ``columns`` ``(B, k)``, in this order."""
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


def _filled(cache: Cache) -> list[DynamicLayer]:
    """Return the layers with a slot for every token."""
    return [
        layer for layer in cache.layers if layer.is_initialized and not isinstance(layer, (*EMPTY_LAYERS, FixedLayer))
    ]


def _dropped(layer: DynamicLayer) -> int:
    return layer.cumulative_length - layer.keys.shape[-2] if layer.is_sliding else 0
