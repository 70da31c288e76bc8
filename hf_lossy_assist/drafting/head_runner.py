"""Runs heads on a target's states, on dynamic caches, or on static ones: compiled, or recorded as graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ..compat.caches import rollback
from ..core.messages import Commit
from ..core.texts import RowShift
from ..core.trees import along_path
from ..models.cache_rows import move_cache
from ..models.static.cache_slot import StaticCacheSlot
from ..models.static.fixed import FixedForwards, FixedRunner, WholeDraft
from ..models.static.forwards import DecoderForward, FixedForward, shallow
from .state_head import StateHead

Body = Callable[[nn.Module, bool, bool], Callable[..., tuple[Tensor, ...]]]
"""Makes a head's forward, or its other one for blocks, from inputs, masks and a ``cache``; it has no decorators."""


class HeadRunner(FixedRunner):
    """Runs a head for a target. Its slot t is about the target's state at token t.

    ``mask`` ``(B, L)`` is False at padding of the prompts, or None. The slots are in ``slot``, a static cache, or in a
    dynamic one of the head's own. Masks are whole ones, so trees need no forwards of their own.
    """

    ahead = 0  # how many tokens beyond its slots it knows

    def __init__(
        self, head: StateHead, target: PreTrainedModel, mask: Tensor | None, slot: StaticCacheSlot | None = None
    ) -> None:
        self.model, self.device = head, head.device
        self.vocabulary = head.vocabulary(target)
        self.embeddings = head.embeddings(target)
        self.seen = self.sent = 0
        self._first = 0
        self._mask = None if mask is None or bool(mask.all()) else mask.bool().to(head.device)
        self.fixed = DynamicSlots(head, self.body) if slot is None else StaticSlots(head, slot, self.body)

    def read_states(self, commit: Commit, states: Tensor) -> None:
        """Read what a round has committed, given the target's states ``(B, S, …)`` of its verification.

        The drafted slots are forgotten: they hold the head's own output in place of the target's states.
        """
        self.rewind(commit.start - 1)
        begin = commit.start + commit.drafted - states.shape[1]
        if commit.path is not None:
            states = along_path(states, commit.path, commit.drafted)
        if not self.seen:  # the caller's cache may hold the beginning, whose states are unknown
            self.seen = self._first = begin
        new = slice(self.seen - begin, commit.start + max(commit.counts) - 1 - begin)
        self._read(commit, self.model.fuse(states[:, new]))

    @abstractmethod
    def _read(self, commit: Commit, g: Tensor) -> None:
        """Read fused states ``(B, n, d)`` of the next n slots; beyond the end of shorter rows, they are anything."""

    def follow(self, commit: Commit) -> None:
        if commit.shift is not None:
            self._move(commit.shift, commit.ids)

    def rewind(self, length: int) -> None:
        if length < self.seen:
            self.fixed.forget_last(self.seen - length)
            self.seen = length

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        slots = shift.known(self.seen)
        self.fixed.move(shift, slots)
        if self._mask is not None or len(set(shift.ends)) > 1:
            mask = torch.ones_like(ids, dtype=torch.bool) if self._mask is None else self._covering(ids.shape[1])
            self._mask = shift.moved(mask.to(self.device), False)
        self.seen = slots

    @property
    def _start(self) -> int:
        """How many slots the cache holds."""
        return self.seen - self._first

    def _covering(self, length: int) -> Tensor:
        """Return the mask of the first ``length`` tokens; generated tokens are no padding."""
        return pad(self._mask, (0, max(0, length - self._mask.shape[1])), value=True)[:, :length]

    def _places(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return positions ``(B, n)`` of the next ``count`` slots, and which slots up to them are no padding."""
        if self._mask is None:
            return torch.arange(self.seen, self.seen + count, device=self.device)[None], None
        there = self._covering(self.seen + count)[:, self._first :]
        return (there.cumsum(-1) - 1).clamp(min=0)[:, -count:], there

    def _anything(self, width: int) -> Tensor:
        """Return ``(rows, width, d)`` states for a trial."""
        rows = self.fixed.slot.rows
        return self.embeddings[:1].expand(rows, width, -1).to(self.device, self.model.dtype).contiguous()


class DynamicSlots:
    """A head's slots in a dynamic cache."""

    chain: WholeDraft | None = None

    def __init__(self, head: StateHead, body: Body) -> None:
        self.cache = head.new_cache()
        self._bodies = body(head, False, True), body(head, True, True)

    def run(self, of_tree: bool, start: int, inputs: tuple[Tensor, ...], *masks: Any, eager: bool = False) -> Tensor:
        """Run a forward over the next slots ``(B, n, …)``, which begin at ``start``; return its states."""
        return self._bodies[of_tree](*inputs, *masks, cache=self.cache)[0]

    def whole(self, mask: Tensor | None, rows: int, count: int, start: int) -> Tensor | None:
        """Return the mask of the ``count`` slots from ``start`` on as forwards take it."""
        return mask

    def forget_last(self, count: int) -> None:
        """Forget the last ``count`` slots."""
        rollback(self.cache, count)

    def move(self, shift: RowShift, slots: int) -> None:
        """Let the cache hold the first ``slots`` slots of the next rectangle."""
        move_cache(self.cache, shift, slots)

    def in_use(self) -> AbstractContextManager[None]:
        return nullcontext()


class StaticSlots(FixedForwards):
    """A head's slots in a static cache."""

    def __init__(self, head: StateHead, slot: StaticCacheSlot, body: Body) -> None:
        super().__init__(head, slot)
        self._eager = {of_tree: self.around(body(head, of_tree, True)) for of_tree in (False, True)}

    def around(self, body: Callable[..., tuple[Tensor, ...]]) -> FixedForward:
        head = shallow(self.model)  # of the head itself a graph would be a reference, which keeps it for ever
        head.__dict__["forward"] = DecoderForward(body, self.slot.rows)
        return FixedForward(head)

    def run(self, of_tree: bool, start: int, inputs: tuple[Tensor, ...], *masks: Any, eager: bool = False) -> Tensor:
        rows, count = inputs[0].shape[:2]
        width = None if eager else self.width(of_tree, start, count)
        # Other strides would be compiled anew, and those of positions change with the text.
        inputs = tuple(x.expand(rows, *x.shape[1:]).contiguous() for x in inputs)
        if width is not None and width > count:
            at = torch.arange(width, device=self.device).clamp(max=count - 1)
            inputs = tuple(x.index_select(1, at) for x in inputs)
            masks = tuple(mask.index_select(2, at) for mask in masks)
        self.begin(start, width or count, prepared=width is not None)
        forward = self._eager[of_tree] if width is None else self.prepared[of_tree, width]
        return forward(*inputs, *masks, cache=self.slot.cache).last_hidden_state[:, :count]

    def whole(self, mask: Tensor | None, rows: int, count: int, start: int) -> Tensor:
        if mask is None:
            mask = torch.ones(1, 1, count, start + count, dtype=torch.bool, device=self.device)
        return pad(mask.expand(rows, -1, -1, -1), (0, self.slot.capacity - mask.shape[-1])).contiguous()

    def forget_last(self, count: int) -> None:
        return  # the next forward writes where it begins

    def move(self, shift: RowShift, slots: int) -> None:
        self.slot.move(shift, slots)
