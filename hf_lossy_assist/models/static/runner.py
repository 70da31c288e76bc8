"""Runs a model over fixed numbers of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, PreTrainedModel
from transformers.utils import logging

from ...compat import cache_name
from ...core.texts import GrowingTensor, RowShift, counting, ones
from ...errors import LossyUnsupportedError
from ..runner import ModelRunner
from .cache_slot import StaticCacheSlot, give_back
from .forwards import CompiledForward, compiled_forward, eager_forward

_TOLERANCE = 0.05  # of the largest logit: half precision, and sums in another order


class StaticCacheRunner(ModelRunner):
    """Runs a text, or the rows of a batch, on a static cache that is rolled back by position.

    A batch keeps its first cache: rows that go on move to the front, and forwards keep their number of rows.
    ``carried`` holds the prompt's mask and positions, where ``generate()`` has prepared them. Positions beyond
    ``last_position``, which only padding of shorter rows has, are clamped to it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slot: StaticCacheSlot,
        carried: Mapping[str, Any],
        seen: int = 0,
        last_position: int | None = None,
    ) -> None:
        self.model = model
        self.slot = slot
        self.seen = seen
        self.sent = 0
        self.last_position = last_position
        self._cache_name = cache_name(model)
        self.carried = {**carried, self._cache_name: slot.cache}
        self.compiled: dict[int, CompiledForward] = {}  # by width
        self.keeps_cache = False  # whether the caller gets the cache in the end; otherwise other calls reuse it
        self.device = device = model.device  # read once: models search all of their weights for it
        self._eager = model if slot.rows == 1 else eager_forward(model, slot.rows)
        mask, positions = carried.get("attention_mask"), carried.get("position_ids")
        if mask is None and slot.rows > 1:  # rows will be padded
            mask = torch.ones(slot.rows, 1, dtype=torch.long)
        if positions is None:
            positions = torch.arange(1)[None] if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
        self._cover(None if mask is None else mask.to(device), positions.to(device))
        self._last: dict[tuple[int, int], Tensor] = {}

    def _cover(self, mask: Tensor | None, positions: Tensor) -> None:
        """Write mask and positions ahead for the whole cache: no padding follows the prompt."""
        self._padding = None
        if mask is not None:
            ahead = GrowingTensor(mask, ones).between(0, self.slot.capacity)
            self._padding = ahead.clone(memory_format=torch.contiguous_format)
        self._positions = GrowingTensor(positions, counting).between(0, self.slot.capacity)
        if self.last_position is not None:
            self._positions = self._positions.clamp(max=self.last_position)

    def compile(self, config: CompileConfig | None, widths: tuple[int, ...]) -> None:
        """Compile forwards over ``widths`` tokens now, so that a failure shows here; a progress bar says so."""
        forwards = {width: compiled_forward(self.model, config, width, self.slot.rows) for width in widths}
        cold = [width for width, x in forwards.items() if (x, self._padding is None) not in self.slot.warm]
        name, shapes = type(self.model).__name__, " and ".join(map(str, cold))
        what = f"Compiling {name} for forwards over {shapes} tokens, once; a large model takes minutes"
        for width in logging.tqdm(cold, desc=what, unit="forward", disable=not cold):
            self._warm_up(forwards[width], width)
        self.compiled |= forwards
        self.slot.clear()

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        return self._forward(text[:, self.seen :].to(self.device), keep)

    def read(self, tokens: Tensor) -> Any:
        return self._forward(tokens, 1)

    def _forward(self, tokens: Tensor, keep: int) -> Any:
        start, count = self.seen, tokens.shape[1]
        width = next((x for x in sorted(self.compiled) if x >= count and self.slot.fits(start, x)), None)
        self.slot.seek(start)
        self.slot.filled += width or count
        self.seen, self.sent = start + count, tokens.numel()
        if width is None:
            return self._eager(**self._inputs(tokens, start, count, keep), return_dict=True)
        inputs = self._inputs(torch.nn.functional.pad(tokens, (0, width - count)), start, count, keep)
        return self.compiled[width](**inputs, return_dict=True)

    def rewind(self, length: int) -> None:
        self.seen = min(self.seen, length)
        self.slot.seek(self.seen)

    def move(self, shift: RowShift, ids: Tensor) -> None:
        slots, width = shift.known(self.seen), ids.shape[1]
        self.slot.move(shift, slots)
        self._cover(shift.moved(self._padding[:, :width], 0), shift.moved(self._positions[:, :width], 0))
        self.seen = slots

    @contextmanager
    def in_use(self) -> Iterator[None]:
        try:
            yield
        finally:
            if not self.keeps_cache:
                give_back(self.model, self.slot)

    def _inputs(self, tokens: Tensor, start: int, count: int, keep: int) -> dict[str, Any]:
        width = tokens.shape[1]
        positions = self._positions[:, start : start + width]
        if width > count:  # learned positions may end with the last one
            positions = positions.clamp(max=self._positions[:, start + count - 1 : start + count])
        return {
            "input_ids": tokens.clone(memory_format=torch.contiguous_format),
            "position_ids": positions.clone(memory_format=torch.contiguous_format),
            "attention_mask": self._padding,
            self._cache_name: self.slot.cache,
            "use_cache": True,
            "logits_to_keep": keep if width == count else self._last_of(count, keep),
        }

    def _last_of(self, count: int, keep: int) -> Tensor:
        if (count, keep) not in self._last:
            self._last[count, keep] = torch.arange(count - keep, count, device=self.device)
        return self._last[count, keep]

    def _warm_up(self, compiled: CompiledForward, width: int) -> None:
        """Run and check a compiled forward; CUDA graphs need two runs after the one that compiles."""
        tokens = torch.zeros(self.slot.rows, width, dtype=torch.long, device=self.device)
        logits = []
        # The eager forward comes first: it makes the cache's tensors, which a compiled one can't.
        for forward in (self._eager, compiled, compiled, compiled):
            self.slot.seek(0)
            logits.append(forward(**self._inputs(tokens, 0, width, 1), return_dict=True).logits)
            self.slot.filled += width
        wrong = (logits[-1] - logits[0]).abs().max()
        if not wrong <= _TOLERANCE * logits[0].abs().max():
            raise LossyUnsupportedError(f"its logits are off by {wrong:.3g}")
        self.slot.warm.add((compiled, self._padding is None))
