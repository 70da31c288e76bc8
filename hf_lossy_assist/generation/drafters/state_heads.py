"""What heads on a target's own states share: what they read of its forwards, their runner, their kind."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ...compat.caches import rollback
from ...core.messages import Commit
from ...core.texts import RowShift
from ...core.trees import along_path
from ...drafting import Drafter
from ...drafting.chain import ChainDrafter, Source
from ...drafting.state_head import StateHead
from ...drafting.vocabulary import vocabulary_sizes
from ...errors import LossyUnsupportedError
from ...models.cache_rows import move_cache
from ...models.static.cache_slot import StaticCacheSlot
from ...models.static.fixed import FixedForwards, FixedRunner, WholeDraft
from ...models.static.forwards import DecoderForward, FixedForward, decoder_layers, shallow
from .base import Asked, Kind, Making, StaticDraft


class StateSource(Source):
    """A head that reads the target's new states after every round, by the runner of its kind.

    It has no room in the first round, because there are no states yet. ``returned`` says that the target's outputs
    have the states.
    """

    runner: HeadRunner

    def __init__(self, runner: HeadRunner, target: PreTrainedModel, returned: bool = False) -> None:
        super().__init__(runner, runner.vocabulary)
        self.states = None if returned else LayerStates(target, runner.model.layers_of(target))

    def room(self, ids: Tensor) -> int:
        return super().room(ids) if self.runner.seen else 0

    def begin(self, ids: Tensor) -> Tensor:
        return ids[:, self.runner.seen + self.runner.ahead :]

    def learn(self, commit: Commit) -> None:
        if self.states is None:  # a forward over a static cache returns them
            states = torch.cat(commit.outputs.hidden_states, dim=-1)
        else:
            states = self.states.pop(commit.start + commit.drafted - min(self.runner.seen, commit.start - 1))
        self.runner.read_states(commit, states)
        super().learn(commit)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with nullcontext() if self.states is None else self.states.watched(), self.runner.in_use():
            yield


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

    def pop(self, wanted: int = 1) -> Tensor:
        """Return ``(B, S, k·d)`` the states of this thread's last forward, side by side, and forget them.

        If these are fewer than ``wanted``, those of the forward before come first: recurrent models read a prompt, or
        many kept tokens, in a forward of its own.
        """
        states = [_last(self._read.pop(i), wanted) for i in self._layers]
        return torch.cat([state.to(states[0].device) for state in states], dim=-1)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, keep the states of this thread's last two forwards."""
        thread = threading.get_ident()

        def keep(i: int, state: Tensor) -> None:
            if threading.get_ident() == thread:
                self._read.setdefault(i, deque(maxlen=2)).append(state)

        def entering(i: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            keep(i, args[0] if args else kwargs["hidden_states"])

        def leaving(i: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            keep(i, output if isinstance(output, Tensor) else output[0])

        with ExitStack() as stack:
            stack.callback(self._read.clear)
            for i in self._layers:
                if i in self._left:
                    stack.enter_context(self._left[i].register_forward_hook(partial(leaving, i)))
                else:
                    hook = partial(entering, i)
                    stack.enter_context(self._entered[i].register_forward_pre_hook(hook, with_kwargs=True))
            yield


def _last(parts: Sequence[Tensor], wanted: int) -> Tensor:
    return parts[-1] if parts[-1].shape[1] >= wanted else torch.cat([*parts], dim=1)


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
        (self.target_size,), self.lm_head = vocabulary_sizes(target), target.get_output_embeddings()
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
        slots, of_cache = shift.known(self.seen), shift
        if self._first:  # the cache lacks the beginning, and now what not every row has
            before, self._first = self._first, self._first + shift.width - min(shift.ends)
            ends = tuple(end - before for end in shift.ends)
            of_cache = replace(shift, ends=ends, width=shift.width - self._first)
        self.fixed.move(of_cache, slots - self._first)
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
        there = self._covering(self.seen + count)
        return (there.cumsum(-1) - 1).clamp(min=0)[:, -count:], there[:, self._first :]

    def _anything(self, width: int) -> Tensor:
        """Return ``(rows, width, d)`` states for a trial."""
        return self.embeddings[:1].repeat(self.fixed.slot.rows, width, 1).to(self.device, self.model.dtype)


class DynamicSlots:
    """A head's slots in a dynamic cache."""

    chains: Sequence[WholeDraft] = ()

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


class StateHeadKind(Kind):
    """`assistant_model` is a head on the target's states; a subclass names its class, its strategy and its runner."""

    gives = frozenset({"q", "stop", "static", "certificate"})
    remedy = "pass a draft model"
    compares = False
    head: ClassVar[type[StateHead]]
    strategy: ClassVar[type[ChainDrafter]]
    runner: ClassVar[type[HeadRunner]]

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return cls(asked) if isinstance(asked.alone, cls.head) else None

    @property
    def title(self) -> str:
        return self.model.title

    @cached_property
    def reads(self) -> tuple[int, ...]:
        return tuple(self.model.layers_of(self.asked.target))

    @cached_property
    def most(self) -> int | None:
        return self.model.longest

    def check(self) -> None:
        self.model.check(self.asked.target)

    def make(self, making: Making) -> Drafter:
        target = self.asked.target
        runner = making.runner or self.runner(self.model, target, making.call.mask)
        return self.drafter(making, StateSource(runner, target, making.returned), self.strategy)

    def static(self, making: Making) -> StaticDraft:
        head, target = self.model, self.asked.target
        apart = head.embeddings(target).device != head.device
        obstacle = f"{head.title} is not where the target's embeddings are" if apart else None
        mask, block = making.call.mask, self.most
        return StaticDraft(
            lambda slot: self.runner(head, target, mask, slot),
            steps=(1,) if block is None else (),
            blocks=() if block is None else (block + 1,),  # a block has the text's newest token, too
            reads_all=True,
            masks=True,
            obstacle=obstacle,
        )
