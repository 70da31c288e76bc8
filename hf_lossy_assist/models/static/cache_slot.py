"""Caches of a fixed size: rolling back means writing from an earlier position on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, StaticCache, StaticLayer, StaticSlidingWindowLayer

from ...compat.caches import REWINDING_LAYERS
from ...compat.models import device_of
from ...core.texts import RowShift
from ..cache_rows import places, slots_of

_SMALLEST = 128
_MOST_IDLE = 2
_ROOMIEST = 4


@dataclass
class GraphMemory:
    """What the graphs of one cache calculate in: never two at a time, so one ``pool`` of the device's is enough."""

    pool: Any = None


class StaticCacheSlot:
    """A static cache that holds ``filled`` tokens, and writes the next ones after them.

    The causal mask hides stale values after this position until they are overwritten. ``warm`` names what
    is compiled or recorded and has run on it, with its kind of mask; ``graphs`` are recorded on its memory.
    """

    def __init__(self, cache: Cache, filled: int = 0, rows: int = 1) -> None:
        self.cache = cache
        self.filled = filled
        self.rows = rows
        self.warm: set[Hashable] = set()
        self.graphs: dict[Hashable, Any] = {}
        self.memory = GraphMemory()
        self.weights: Hashable = None  # those that the graphs read
        self._layers = [layer for layer in cache.layers if isinstance(layer, StaticLayer)]
        self.capacity = min(layer.max_cache_len for layer in self._layers)

    def seek(self, position: int) -> None:
        if position != self.filled and self._layers[0].is_initialized:
            torch._foreach_add_(self._lengths, position - self.filled)  # one kernel for all layers
        self.filled = position

    @property
    def _used(self) -> list[StaticLayer]:
        """The layers that have keys: those that attend to images have none without an image."""
        return [layer for layer in self._layers if layer.is_initialized]

    @property
    def _lengths(self) -> list[Tensor]:
        return [layer.cumulative_length for layer in self._layers]

    @cached_property
    def _start(self) -> Tensor:
        return torch.zeros_like(self._lengths[0])

    def place(self, position: int) -> None:
        """Let the next recorded forward begin at ``position``."""
        self._start.fill_(position)

    def recorded(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``body`` for a recording: whenever it is run, it begins at the position of :meth:`place`."""

        def run(*args: Any, **inputs: Any) -> Any:
            torch._foreach_copy_(self._lengths, [self._start] * len(self._layers))
            return body(*args, **inputs)

        return run

    def move(self, shift: RowShift, slots: int) -> None:
        """Let the first rows hold the first ``slots`` slots of the next rectangle; the other rows become stale."""
        index, sources = shift.index, shift.sources(slots).clamp(min=0)

        @cache
        def slots_at(heads: int, length: int, device: torch.device) -> torch.Tensor:
            return places(heads, length, index.to(device), sources.to(device))

        for layer in self._used:
            at = slots_at(*layer.keys.shape[1:3], layer.keys.device)
            for whole in (layer.keys, layer.values):
                whole[: len(at), :, :slots] = slots_of(whole, at)
        self.seek(slots)

    def keep_path(self, start: int, columns: Tensor) -> None:
        """After the first ``start`` slots, keep only the slots ``columns`` ``(B, k)``, in this order."""
        rows, count = columns.shape
        for layer in self._used:
            index = (columns + start).to(layer.keys.device)[:, None, :, None]
            for whole in (layer.keys, layer.values):
                path = whole[:rows].gather(2, index.expand(-1, whole.shape[1], -1, whole.shape[3]))
                whole[:rows, :, start : start + count] = path
        self.seek(start + count)

    def copied_to(self, cache: Cache) -> Cache:
        """Copy what it holds to an empty dynamic cache, which is returned."""
        for i, layer in enumerate(self.cache.layers):
            if layer in self._used:
                cache.update(layer.keys[:, :, : self.filled], layer.values[:, :, : self.filled], i)
        return cache

    def fits(self, start: int, tokens: int) -> bool:
        return start + tokens <= self.capacity

    def forget_forwards(self) -> None:
        """Forget what was compiled or recorded on this memory; graphs refer to the cache, and so would keep it."""
        self.graphs.clear()
        self.memory = GraphMemory()  # torch takes no pool again whose graphs are gone
        self.warm.clear()

    def clear(self) -> None:
        """Forget everything in the cache, stale values included: they could be infinite."""
        self.cache.reset()
        self.filled = 0


def rewinds(cache: Cache) -> bool:
    """Tell whether ``cache`` can be rolled back by position; sliding windows can't, as they drop older tokens."""
    return all(type(layer) in REWINDING_LAYERS for layer in cache.layers)


def new_static_cache(model: PreTrainedModel, length: int) -> StaticCache:
    """Return a cache of ``length`` slots in every layer; masks apply sliding windows."""
    cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=length)
    cache.layers = [
        StaticLayer(max_cache_len=length) if type(layer) is StaticSlidingWindowLayer else layer
        for layer in cache.layers
    ]
    return cache


def roomy(length: int) -> int:
    """Round ``length`` up to a power of two, so that there are few lengths: each is compiled or recorded anew.

    Examples
    --------
    >>> [roomy(n) for n in (1, 128, 129, 1000, 3000)]
    [128, 128, 256, 1024, 4096]
    """
    return max(_SMALLEST, 1 << (length - 1).bit_length())


# The caches of earlier calls by model, because compiled forwards know them by address.
_idle: weakref.WeakKeyDictionary[PreTrainedModel, list[tuple[Hashable, StaticCacheSlot]]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def take_slot(model: PreTrainedModel, length: int, rows: int = 1) -> StaticCacheSlot:
    """Return an empty cache for ``length`` tokens of each row.

    A cache up to four times as long will do: its forwards are compiled already.
    """
    length = roomy(length)
    wanted = _kind(model, rows)
    with _lock:
        idle = _idle.setdefault(model, [])
        fits = [x for x in idle if x[0] == wanted and length <= x[1].capacity <= _ROOMIEST * length]
        if fits:
            best = min(fits, key=lambda entry: entry[1].capacity)
            idle.remove(best)
            best[1].clear()
            return best[1]
    return StaticCacheSlot(new_static_cache(model, length), rows=rows)


def give_back(model: PreTrainedModel, slot: StaticCacheSlot) -> None:
    """Keep a cache for later calls."""
    with _lock:
        idle = _idle.setdefault(model, [])
        idle.append((_kind(model, slot.rows), slot))
        for _, old in idle[:-_MOST_IDLE]:
            old.forget_forwards()
        del idle[:-_MOST_IDLE]


def _kind(model: PreTrainedModel, rows: int) -> Hashable:
    # Tensors made in inference mode can't be written to outside of it.
    return rows, model.dtype, device_of(model), torch.is_inference_mode_enabled()
