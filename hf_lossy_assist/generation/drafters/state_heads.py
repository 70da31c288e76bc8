"""What heads on a target's own states have in common: what they read of its forwards, when, and their kind."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...core.messages import Commit
from ...drafting import Drafter
from ...drafting.chain import ChainDrafter, Source
from ...drafting.head_runner import HeadRunner
from ...drafting.state_head import StateHead
from ...errors import LossyUnsupportedError
from ...models.static.forwards import decoder_layers
from .base import Asked, Kind, Making, StaticDraft


class StateSource(Source):
    """A head that reads the target's new states after every round, by the runner of its kind.

    It has no room in the first round, because there are no states yet. ``returned`` says that the target's outputs
    have the states.
    """

    runner: HeadRunner

    def __init__(self, runner: HeadRunner, target: PreTrainedModel, returned: bool = False) -> None:
        super().__init__(runner, runner.vocabulary)
        self.states = ReturnedStates() if returned else LayerStates(target, runner.model.layers_of(target))

    def room(self, ids: Tensor) -> int:
        return super().room(ids) if self.runner.seen else 0

    def begin(self, ids: Tensor) -> Tensor:
        return ids[:, self.runner.seen + self.runner.ahead :]

    def learn(self, commit: Commit) -> None:
        unread = commit.start + commit.drafted - min(self.runner.seen, commit.start - 1)
        self.runner.read_states(commit, self.states.pop(commit.outputs, unread))
        super().learn(commit)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.states.watched(), self.runner.in_use():
            yield


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
        return self.chain(making, self.source(making), self.strategy)

    def source(self, making: Making) -> StateSource:
        target = self.asked.target
        return StateSource(making.runner or self.runner(self.model, target, making.call.mask), target, making.returned)

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
