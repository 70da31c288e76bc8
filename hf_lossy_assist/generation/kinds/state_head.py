"""What heads on the target's own states have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from ...drafting import Drafter
from ...drafting.model import mask_of
from ...drafting.state_drafter import StateDrafter
from ...drafting.state_head import StateHead
from ...drafting.state_static import StaticStateForwards
from .base import Asked, Kind, Making, StaticDraft


class StateHeadKind(Kind):
    """`assistant_model` is a head on the target's states; a subclass names its class, its drafter and its forwards."""

    gives = frozenset({"q", "stop", "static", "certificate"})
    remedy = "pass a draft model"
    compares = False
    head: ClassVar[type[StateHead]]
    drafter: ClassVar[type[StateDrafter]]
    forwards: ClassVar[type[StaticStateForwards]]

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
        return self.drafter(self.model, self.asked.target, **making.chains | self._own(making))

    def _own(self, making: Making) -> dict[str, Any]:
        return {"returned": making.returned, "runner": making.runner}

    def static(self, making: Making) -> StaticDraft:
        head, target, call = self.model, self.asked.target, making.call
        apart = head.embeddings(target).device != head.device
        obstacle = f"{head.title} is not where the target's embeddings are" if apart else None
        mask, block = mask_of(call.ids, call.inputs), self.most
        return StaticDraft(
            lambda slot: self.forwards(head, target, mask, slot),
            steps=(1,) if block is None else (),
            blocks=() if block is None else (block + 1,),  # a block has the text's newest token, too
            reads_all=True,
            masks=True,
            obstacle=obstacle,
        )
