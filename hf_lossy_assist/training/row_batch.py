"""Batches whose rows can be replaced by other texts at any time.

As in :mod:`..models.reading`, texts are aligned on the right. A text can be taken out, kept, and put back cut to any
length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ..compat.caches import new_cache
from ..models.reading import CachedText, forward

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


class RowBatch:
    """A batch of texts that grow by one token per step, and come and go between steps. Each has a key and a row."""

    def __init__(self, model: PreTrainedModel, count: int) -> None:
        self.model = model
        self._rows: dict[int, int] = {}  # of each text, by its key
        self._lengths = [0] * count  # of the rows; idle ones are empty
        self._columns = _Columns(count)
        self._cache = new_cache(model)
        self._cache.layers = [_Layer(self._columns) for _ in self._cache.layers]

    @torch.inference_mode()
    def put(self, key: int, memory: CachedText, n: int) -> None:
        """Fill an idle row with the first ``n`` tokens of a text that the model has read."""
        self._make_room(n)
        row, end = self._idle()[0], self._columns.end
        for layer, states in zip(self._cache.layers, memory.layers, strict=False):
            if not layer.buffers:
                layer.lazy_initialization(*states)
            for buffer, piece in zip(layer.buffers, states, strict=True):
                buffer[row, :, end - n : end] = piece[:, :n]
        self._rows[key], self._lengths[row] = row, n

    @torch.inference_mode()
    def remove(self, key: int, tokens: Sequence[int]) -> CachedText:
        """Return the cache of the text ``tokens``; its row idles from now on."""
        row, end = self._rows.pop(key), self._columns.end
        n, self._lengths[row] = self._lengths[row], 0
        layers = tuple(
            tuple(buffer[row, :, end - n : end].clone() for buffer in layer.buffers) for layer in self._cache.layers
        )
        return CachedText(tuple(tokens), layers)

    @torch.inference_mode()
    def step(self, tokens: Mapping[int, int], wanted: int) -> Tensor:
        """Append a token to every text, by key, and return the next token's logits ``(N, V)`` in the same order.

        Texts without a token are forgotten. Idle rows are dropped once half of all rows would do for the ``wanted``
        texts that are at work from now on.
        """
        self._rows = {key: self._rows[key] for key in tokens}
        if 2 * wanted <= len(self._lengths):
            kept = [*self._rows.values(), *self._idle()][:wanted]
            for layer in self._cache.layers:
                layer.buffers = [buffer[kept] for buffer in layer.buffers]
            self._rows = {key: row for row, key in enumerate(self._rows)}
            self._lengths = [self._lengths[row] for row in kept]
            self._columns.rows = len(kept)
        self._make_room(max(self._lengths))
        at = self._columns
        at.start = at.end - max(self._lengths)
        width = at.end - at.start
        device = self.model.device
        lengths = torch.tensor(self._lengths, device=device)
        mask = (torch.arange(width + 1, device=device) >= width - lengths[:, None]).long()
        ids = torch.zeros((len(self._lengths), 1), dtype=torch.long)
        used = list(self._rows.values())
        ids[used, 0] = torch.tensor([*tokens.values()])
        logits = forward(self.model, ids.to(device), mask, self._cache).logits[:, -1]
        at.end += 1
        self._lengths = [n + 1 if row in used else 0 for row, n in enumerate(self._lengths)]
        return logits[used]

    def _idle(self) -> list[int]:
        used = set(self._rows.values())
        return [row for row in range(len(self._lengths)) if row not in used]

    def _make_room(self, width: int) -> None:
        """Make room for ``width`` columns left of the end, and one right of it."""
        at = self._columns
        if width <= at.end < at.capacity:
            return
        used = max(self._lengths)
        end = max(width, used)
        capacity = max(at.capacity, end + _SLACK)
        for layer in self._cache.layers:
            layer.move(used, end, capacity)
        at.end, at.capacity = end, capacity
