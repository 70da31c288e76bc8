"""Forwards of one model over fixed numbers of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, PreTrainedModel

from ...decoding.buffers import Continued, counting, ones
from ...errors import LossyUnsupportedError
from .cache_slot import Slots
from .compiled_forward import Program, program

_TOLERANCE = 0.05  # of the largest logit: half precision, and sums in another order


@dataclass(eq=False)
class Steps:
    """What runs one sequence through a model whose cache is static.

    Attributes
    ----------
    model
        The model.
    slots
        Its cache.
    mask, positions
        ``(1, L)`` the prompt's attention mask, where it is padded, and its positions, where they are given.
    programs
        Compiled forwards by width; empty where nothing is compiled.
    """

    model: PreTrainedModel
    slots: Slots
    mask: Tensor | None = None
    positions: Tensor | None = None
    programs: dict[int, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # As long as the cache: what follows the prompt is no padding, and the causal mask hides stale slots.
        capacity = self.slots.capacity
        self.device = device = self.model.device  # models look through all of their weights for it
        self._padding = None
        known = torch.arange(1, device=device)[None]
        if self.mask is not None:
            mask = self.mask.to(device)
            self._padding = Continued(mask, ones).upto(capacity).clone(memory_format=torch.contiguous_format)
            known = (mask.cumsum(-1) - 1).clamp(min=0)
        if self.positions is not None:
            known = self.positions.to(device)
        self._positions = Continued(known, counting).upto(capacity)
        self._last: dict[tuple[int, int], Tensor] = {}

    def compile(self, config: CompileConfig | None, widths: tuple[int, ...]) -> None:
        """Compile forwards over ``widths`` tokens, now: all that can fail fails here."""
        for width in widths:
            compiled = program(self.model, config, width)
            if (compiled, self._padding is None) not in self.slots.warm:
                self._warm_up(compiled, width)
            self.programs[width] = compiled
        self.slots.clear()

    def prepare(self, ids: Tensor, start: int, keep: int) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return what runs the forward over the tokens of ``ids`` ``(1, L)`` from ``start`` on, and its inputs.

        Logits are asked for at the last ``keep`` tokens. Behind them there may be more, to fill up to a width.
        """
        tokens = ids[:, start:].to(self.device)
        count = tokens.shape[1]
        width = next((x for x in sorted(self.programs) if x >= count and self.slots.fits(start, x)), None)
        self.slots.seek(start)
        self.slots.filled += width or count
        if width is None:
            return self.model, self._inputs(tokens, start, count, keep)
        inputs = self._inputs(torch.nn.functional.pad(tokens, (0, width - count)), start, count, keep)
        return self.programs[width], inputs

    def _inputs(self, tokens: Tensor, start: int, count: int, keep: int) -> dict[str, Any]:
        width = tokens.shape[1]
        positions = self._positions[:, start : start + width]
        if width > count:  # a learned position may not exist behind the last one
            positions = positions.clamp(max=self._positions[:, start + count - 1 : start + count])
        return {
            "input_ids": tokens.clone(memory_format=torch.contiguous_format),
            "position_ids": positions.clone(memory_format=torch.contiguous_format),
            "attention_mask": self._padding,
            "past_key_values": self.slots.cache,
            "use_cache": True,
            "logits_to_keep": keep if width == count else self._last_of(count, keep),
        }

    def _last_of(self, count: int, keep: int) -> Tensor:
        if (count, keep) not in self._last:
            self._last[count, keep] = torch.arange(count - keep, count, device=self.device)
        return self._last[count, keep]

    def _warm_up(self, compiled: Program, width: int) -> None:
        """Run and check a program: twice more than it takes to compile it, because CUDA graphs need that."""
        tokens = torch.zeros(1, width, dtype=torch.long, device=self.device)
        logits = []
        # The first forward makes the cache's tensors, which a compiled one could not.
        for forward in (self.model, compiled, compiled, compiled):
            self.slots.seek(0)
            logits.append(forward(**self._inputs(tokens, 0, width, 1), return_dict=True).logits)
            self.slots.filled += width
        wrong = (logits[-1] - logits[0]).abs().max()
        if not wrong <= _TOLERANCE * logits[0].abs().max():
            raise LossyUnsupportedError(f"its logits are off by {wrong:.3g}")
        self.slots.warm.add((compiled, self._padding is None))
