"""Moving the rows of caches."""

from __future__ import annotations

from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from ..decoding.batch_layout import RowShift

MOVABLE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
"""Kinds of layers that hold one slot per token and nothing else."""


def movable(cache: Cache) -> bool:
    """Tell whether the rows of ``cache`` can be moved."""
    return all(type(layer) in MOVABLE_LAYERS for layer in cache.layers)


def move_cache(cache: Cache, move: RowShift, slots: int) -> None:
    """Let ``cache`` hold the first ``slots`` slots of the new rectangle."""
    sources = move.sources(slots)
    for layer in cache.layers:
        if layer.is_initialized:  # some layers use another one's keys
            _move_layer(layer, move, sources)


def _move_layer(layer: DynamicLayer, move: RowShift, sources) -> None:
    kept = sources
    dropped = 0
    if layer.is_sliding:
        # Everything that leaves the window may go, and what has gone before is not in the layer any more.
        dropped = layer.cumulative_length - layer.keys.shape[-2]
        kept = sources[:, -(layer.sliding_window - 1) :]
        layer.cumulative_length = sources.shape[1]
    kept = (kept - dropped).clamp(min=0).to(layer.keys.device)[:, None, :, None]
    rows = move.index.to(layer.keys.device)
    for name in ("keys", "values"):
        states = getattr(layer, name).index_select(0, rows)
        setattr(layer, name, states.gather(2, kept.expand(-1, states.shape[1], -1, states.shape[3])))
