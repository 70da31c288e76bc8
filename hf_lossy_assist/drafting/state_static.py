"""What heads on a target's states do on static caches: compiled, or recorded as graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ..core.texts import RowShift
from ..models.static.cache_slot import StaticCacheSlot
from ..models.static.fixed_runner import FixedRunner, WholeDraft
from ..models.static.forwards import DecoderForward, FixedForward, shallow
from .state_drafter import StateForwards
from .state_head import StateHead


class StaticStateForwards(FixedRunner, StateForwards):
    """Runs a head on a static cache. Its masks are whole ones, so trees need no forwards of their own."""

    def __init__(self, head: StateHead, target: PreTrainedModel, mask: Tensor | None, slot: StaticCacheSlot) -> None:
        FixedRunner.__init__(self, head, slot)
        super(FixedRunner, self).__init__(head, target, mask)
        self._vocabulary = head.vocabulary(target)
        self._eager = {of_tree: self._around(self._body(head, of_tree, True)) for of_tree in (False, True)}

    def _around(self, body: Callable[..., tuple[Tensor, ...]]) -> FixedForward:
        head = shallow(self.model)  # of the head itself a graph would be a reference, which keeps it for ever
        head.__dict__["forward"] = DecoderForward(body, self.slot.rows)
        return FixedForward(head)

    def _send(self, of_tree: bool, inputs: tuple[Tensor, ...], *masks: Any, eager: bool = False) -> Tensor:
        """Run a forward over the next slots ``(B, n, …)``, filled up to a width that is prepared; return its states."""
        rows, count = inputs[0].shape[:2]
        start = self.seen - self._first
        width = None if eager else self._width(of_tree, start, count)
        # Other strides would be compiled anew, and those of positions change with the text.
        inputs = tuple(x.expand(rows, *x.shape[1:]).contiguous() for x in inputs)
        if width is not None and width > count:
            at = torch.arange(width, device=self.device).clamp(max=count - 1)
            inputs = tuple(x.index_select(1, at) for x in inputs)
            masks = tuple(mask.index_select(2, at) for mask in masks)
        self._go_to(start, self.recorded and width is not None)
        self.slot.filled = start + (count if width is None else width)
        forward = self._eager[of_tree] if width is None else self.fixed[of_tree, width]
        output = forward(*inputs, *masks, cache=self.slot.cache).last_hidden_state
        self.seen += count
        return output[:, :count]

    def _whole(self, mask: Tensor | None, rows: int, count: int) -> Tensor:
        """Return the mask of the next ``count`` slots over all slots of the cache."""
        if mask is None:
            mask = torch.ones(1, 1, count, self.seen - self._first + count, dtype=torch.bool, device=self.device)
        return pad(mask.expand(rows, -1, -1, -1), (0, self.slot.capacity - mask.shape[-1]))

    def _anything(self, width: int) -> Tensor:
        """Return ``(rows, width, d)`` states for a trial."""
        return self.embeddings[:1].expand(self.slot.rows, width, -1).to(self.device, self.model.dtype).contiguous()

    def _go_to_draft(self, draft: WholeDraft, slots: int) -> None:
        """Let a whole draft begin at the next slot, and write ``slots``."""
        start = self.seen - self._first
        self._go_to(start, self.recorded and draft is self.chain)
        self.slot.filled = start + slots

    def rewind(self, length: int) -> None:
        self.seen = min(self.seen, length)
        self.slot.seek(self.seen - self._first)

    def _move_cache(self, shift: RowShift, slots: int) -> None:
        self.slot.move(shift, slots)
