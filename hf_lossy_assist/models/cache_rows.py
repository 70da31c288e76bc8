"""Moves the rows of a cache, and keeps one path of a tree in it."""

from __future__ import annotations

from functools import cache as cache_results

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from ..compat.caches import EMPTY_LAYERS, FixedLayer
from ..core.texts import RowShift

# These hold one slot per token and nothing else, or what stays as it is.
_MOVABLE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, FixedLayer, *EMPTY_LAYERS)


def movable(cache: Cache) -> bool:
    return all(type(layer) in _MOVABLE_LAYERS for layer in cache.layers)


def move_cache(cache: Cache, move: RowShift, slots: int) -> None:
    """Let ``cache`` hold the first ``slots`` slots of the new rectangle."""
    index, sources = move.index, move.sources(slots)
    for layer in cache.layers:
        if isinstance(layer, FixedLayer) and layer.is_initialized:
            rows = index.to(layer.keys.device)
            layer.keys, layer.values = layer.keys.index_select(0, rows), layer.values.index_select(0, rows)

    @cache_results
    def slots_at(heads: int, length: int, dropped: int, window: int | None, device: torch.device) -> Tensor:
        kept = sources if window is None else sources[:, -(window - 1) :]  # older slots have left the window
        return places(heads, length, index.to(device), (kept - dropped).clamp(min=0).to(device))

    for layer in _filled(cache):
        _, heads, length, _ = layer.keys.shape
        window = layer.sliding_window if layer.is_sliding else None
        at = slots_at(heads, length, _dropped(layer), window, layer.keys.device)
        layer.keys, layer.values = (slots_of(x, at) for x in (layer.keys, layer.values))
        if layer.is_sliding:
            layer.cumulative_length = slots


def places(heads: int, length: int, rows: Tensor, kept: Tensor) -> Tensor:
    """Return ``(B', H, S')`` where slots ``kept`` ``(B', S')`` of rows ``(B',)`` are in a state ``(B, H, S, d)``."""
    first = rows[:, None] * heads + torch.arange(heads, device=rows.device)
    return first[:, :, None] * length + kept[:, None]


def slots_of(state: Tensor, at: Tensor) -> Tensor:
    """Return of ``(B, H, S, d)`` the slots at :func:`places`."""
    # Whole states are copied in one pass, which takes a tenth of the time of `gather`.
    return state.reshape(-1, state.shape[3]).index_select(0, at.flatten()).view(*at.shape, state.shape[3])


def keep_path(cache: Cache, start: int, columns: Tensor) -> None:
    """After the first ``start`` slots, keep only the slots ``columns`` ``(B, k)``, in this order."""

    @cache_results
    def slots_at(begin: int, device: torch.device) -> Tensor:
        return (columns + begin).to(device)[:, None, :, None]

    for layer in _filled(cache):
        begin = start - _dropped(layer)
        index = slots_at(begin, layer.keys.device)
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
