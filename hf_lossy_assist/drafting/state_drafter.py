"""Drafts with heads on a target's states, such as EAGLE-3's, DFlash's and MTP layers: what they read, and when."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..compat.caches import rollback
from ..core.messages import Commit, Draft
from ..core.texts import RowShift, Texts
from ..core.trees import along_path
from ..errors import LossyUnsupportedError
from ..models.cache_rows import move_cache
from ..models.runner import ModelRunner
from ..models.static.forwards import decoder_layers
from .draft_ends import DraftLength
from .model import ModelDrafter
from .state_head import StateHead


class StateDrafter(ModelDrafter):
    """Drafts with a head that reads the target's new states after every round.

    The first round has no draft, because there are no states yet. ``returned`` says that the target's outputs have the
    states.
    """

    forwards: ClassVar[type[StateForwards]]

    def __init__(
        self,
        head: StateHead,
        target: PreTrainedModel,
        draft_length: int | DraftLength,
        *,
        attention_mask: Tensor | None = None,
        returned: bool = False,
        runner: Any = None,
        **settings: Any,
    ) -> None:
        self.states = ReturnedStates() if returned else LayerStates(target, head.layers_of(target))
        super().__init__(
            head,
            draft_length,
            vocabulary=head.vocabulary(target),
            runner=runner or (lambda: self.forwards(head, target, attention_mask)),
            **settings,
        )

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        return super().propose(ids, layout, remaining) if self.runner.seen else Draft.empty(ids)

    def observe(self, commit: Commit) -> None:
        unread = commit.start + commit.drafted - min(self.runner.seen, commit.start - 1)
        self.runner.read_states(commit, self.states.pop(commit.outputs, unread))
        super().observe(commit)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.states.watched(), self.runner.in_use():
            yield


class StateForwards(ModelRunner):
    """Runs a head for a target. Its slot t is about the target's state at token t.

    ``mask`` ``(B, L)`` is False at padding of the prompts, or None.
    """

    def __init__(self, head: StateHead, target: PreTrainedModel, mask: Tensor | None) -> None:
        self.model = head
        self.embeddings = head.embeddings(target)
        self.seen = self.sent = 0
        self._first = 0
        self._cache = head.new_cache()
        self._mask = None if mask is None or bool(mask.all()) else mask.bool().to(head.device)

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
            rollback(self._cache, self.seen - length)
            self.seen = length

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        slots = shift.known(self.seen)
        self._move_cache(shift, slots)
        if self._mask is not None or len(set(shift.ends)) > 1:
            mask = torch.ones_like(ids, dtype=torch.bool) if self._mask is None else self._covering(ids.shape[1])
            self._mask = shift.moved(mask.to(self.model.device), False)
        self.seen = slots

    def _move_cache(self, shift: RowShift, slots: int) -> None:
        move_cache(self._cache, shift, slots)

    def _covering(self, length: int) -> Tensor:
        """Return the mask of the first ``length`` tokens; generated tokens are no padding."""
        return nn.functional.pad(self._mask, (0, max(0, length - self._mask.shape[1])), value=True)[:, :length]

    def _places(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return positions ``(B, n)`` of the next ``count`` slots, and which slots up to them are no padding."""
        if self._mask is None:
            return torch.arange(self.seen, self.seen + count, device=self.model.device)[None], None
        there = self._covering(self.seen + count)[:, self._first :]
        return (there.cumsum(-1) - 1).clamp(min=0)[:, -count:], there


class ReturnedStates:
    """Reads the states that a forward over a static cache returns."""

    def pop(self, outputs: Any, wanted: int) -> Tensor:
        return torch.cat(outputs.hidden_states, dim=-1)

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()


class LayerStates:
    """Reads a few of the hidden states of a model's forwards, numbered as in :meth:`StateHead.layers_of`."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        depth = model.config.get_text_config(decoder=True).num_hidden_layers
        found = decoder_layers(model)
        if found is None and min(layers) <= depth:
            raise LossyUnsupportedError(
                "`assistant_model` reads states of the target's layers, but the decoder of a "
                f"{type(model).__name__} does not hold its layers in one list; pass a draft model"
            )
        self._entered = [] if found is None else list(found[1])
        self._left = {depth: self._entered[-1]} if found else {}
        self._left[depth + 1] = model.get_decoder()
        self._layers = tuple(layers)
        self._read: dict[int, deque[Tensor]] = {}

    def pop(self, outputs: Any = None, wanted: int = 1) -> Tensor:
        """Return ``(B, S, k·d)`` the states of this thread's last forward, side by side, and forget them.

        If these are fewer than ``wanted``, those of the forward before come first: recurrent models read a prompt, or
        many kept tokens, in a forward of its own.
        """
        states = [_last(self._read.pop(i), wanted) for i in self._layers]
        return torch.cat([state.to(states[0].device) for state in states], dim=-1)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, keep the states of this thread's last two forwards."""
        thread, handles = threading.get_ident(), []

        def keep(i: int, state: Tensor) -> None:
            if threading.get_ident() == thread:
                self._read.setdefault(i, deque(maxlen=2)).append(state)

        def entering(i: int) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                keep(i, args[0] if args else kwargs["hidden_states"])

            return hook

        def leaving(i: int) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
                keep(i, output if isinstance(output, Tensor) else output[0])

            return hook

        try:
            for i in self._layers:
                if i in self._left:
                    handles.append(self._left[i].register_forward_hook(leaving(i)))
                else:
                    handles.append(self._entered[i].register_forward_pre_hook(entering(i), with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._read.clear()


def _last(parts: Sequence[Tensor], wanted: int) -> Tensor:
    return parts[-1] if parts[-1].shape[1] >= wanted else torch.cat([*parts], dim=1)
