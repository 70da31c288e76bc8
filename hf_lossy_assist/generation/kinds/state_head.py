"""What heads on the target's own states have in common."""

from __future__ import annotations

from typing import ClassVar, Self

from ...drafting import Drafter
from ...drafting.chain import ChainDrafter
from ...drafting.head_runner import HeadRunner
from ...drafting.state_head import StateHead
from ...drafting.state_source import StateSource
from .base import Asked, Kind, Making, StaticDraft


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

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(self.model.layers_of(self.asked.target))

    @property
    def most(self) -> int | None:
        return self.model.longest

    def check(self) -> None:
        self.model.check(self.asked.target)

    def longest(self, constant: int | None) -> int | None:
        return constant

    def make(self, making: Making) -> Drafter:
        return making.chain(self.source(making), self.strategy)

    def source(self, making: Making) -> StateSource:
        target = self.asked.target
        return StateSource(making.runner or self.runner(self.model, target, making.mask), target, making.returned)

    def static(self, making: Making) -> StaticDraft:
        head, target = self.model, self.asked.target
        apart = head.embeddings(target).device != head.device
        obstacle = f"{head.title} is not where the target's embeddings are" if apart else None
        mask, block = making.mask, self.most
        return StaticDraft(
            lambda slot: self.runner(head, target, mask, slot),
            steps=(1,) if block is None else (),
            blocks=() if block is None else (block + 1,),  # a block has the text's newest token, too
            reads_all=True,
            masks=True,
            obstacle=obstacle,
        )
