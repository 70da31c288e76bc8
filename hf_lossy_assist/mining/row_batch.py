"""Batches whose rows can be replaced by other texts at any time.

As in :mod:`.reading`, texts are aligned on the right. A row can be taken out, kept, and put back cut to any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ..compat import new_cache
from .reading import CachedText, forward

# Free columns on the right, which fill up before all rows move to the left.
_SLACK = 128


@dataclass(eq=False)
class _Columns:
    """The used columns of the buffers."""

    rows: int
    start: int = 0
    end: int = 0
    capacity: int = 0


class _Layer(DynamicLayer):
    """A layer's keys and values in buffers, which saves a copy per token."""

    def __init__(self, columns: _Columns) -> None:
        super().__init__()
        self.columns = columns
        self.buffers: list[Tensor] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True
        rows, capacity = self.columns.rows, self.columns.capacity
        self.buffers = [x.new_zeros(rows, x.shape[-3], capacity, x.shape[-1]) for x in (key_states, value_states)]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.buffers:
            self.lazy_initialization(key_states, value_states)
        at, new = self.columns, key_states.shape[-2]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, at.end : at.end + new] = states
        keys, values = (buffer[:, :, at.start : at.end + new] for buffer in self.buffers)
        return keys, values

    def get_seq_length(self) -> int:
        return self.columns.end - self.columns.start

    def move(self, used: int, end: int, capacity: int) -> None:
        """Move the last ``used`` columns so that they end at ``end``."""
        for i, buffer in enumerate(self.buffers):
            kept = buffer[:, :, self.columns.end - used : self.columns.end].clone()
            if capacity > buffer.shape[2]:
                buffer = buffer.new_zeros(*buffer.shape[:2], capacity, buffer.shape[3])
            buffer[:, :, end - used : end] = kept
            self.buffers[i] = buffer


@dataclass(eq=False)
class RowBatch:
    """A batch whose rows grow by one token per step, and can be replaced between steps."""

    model: PreTrainedModel
    count: int
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = [0] * self.count
        self._columns = _Columns(self.count)
        self._cache = new_cache(self.model)
        self._cache.layers = [_Layer(self._columns) for _ in self._cache.layers]

    @torch.inference_mode()
    def put(self, row: int, memory: CachedText, n: int) -> None:
        """Fill ``row`` with the first ``n`` tokens of a text that the model has read."""
        self._make_room(n)
        end = self._columns.end
        for layer, states in zip(self._cache.layers, memory.layers, strict=False):
            if not layer.buffers:
                layer.lazy_initialization(*states)
            for buffer, piece in zip(layer.buffers, states, strict=True):
                buffer[row, :, end - n : end] = piece[:, :n]
        self.lengths[row] = n

    @torch.inference_mode()
    def remove(self, row: int, tokens: Sequence[int]) -> CachedText:
        """Return the content of ``row``, whose text is ``tokens``; the row idles from now on."""
        end, n = self._columns.end, self.lengths[row]
        layers = tuple(
            tuple(buffer[row, :, end - n : end].clone() for buffer in layer.buffers) for layer in self._cache.layers
        )
        self.lengths[row] = 0
        return CachedText(tuple(tokens), layers)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], active: Sequence[bool]) -> Tensor:
        """Append one token to every active row, and return the next token's logits ``(B, V)``.

        Inactive rows become empty; their logits are meaningless.
        """
        self._make_room(max(self.lengths))
        at = self._columns
        at.start = at.end - max(self.lengths)
        width = at.end - at.start
        device = self.model.device
        lengths = torch.tensor(self.lengths, device=device)
        mask = (torch.arange(width + 1, device=device) >= width - lengths[:, None]).long()
        ids = torch.tensor(tokens, device=device)[:, None]
        logits = forward(self.model, ids, mask, self._cache).logits[:, -1]
        at.end += 1
        self.lengths = [n + 1 if on else 0 for n, on in zip(self.lengths, active, strict=True)]
        return logits

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        """Keep only these rows, renumbered in this order."""
        for layer in self._cache.layers:
            layer.buffers = [buffer[rows] for buffer in layer.buffers]
        self.lengths = [self.lengths[row] for row in rows]
        self.count = self._columns.rows = len(rows)

    def _make_room(self, width: int) -> None:
        """Make room for ``width`` columns left of the end, and one right of it."""
        at = self._columns
        if width <= at.end < at.capacity:
            return
        used = max(self.lengths)
        end = max(width, used)
        capacity = max(at.capacity, end + _SLACK)
        for layer in self._cache.layers:
            layer.move(used, end, capacity)
        at.end, at.capacity = end, capacity
