"""A draft model that reads the target's keys and values."""

from __future__ import annotations

from typing import Self

from ...compat.drafters import drafts_from_target_states
from ...drafting import Drafter
from ...drafting.shared_keys import SharedKeysSource, check_shared_keys
from .base import Asked, Kind, Making, register


@register
class SharedKeys(Kind):
    """`assistant_model` is a Gemma 4 assistant."""

    gives = frozenset({"q", "stop", "certificate"})
    remedy = "pass a draft model"

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return cls(asked) if drafts_from_target_states(asked.alone) else None

    def check(self) -> None:
        check_shared_keys(self.asked.target, self.model)

    def longest(self, constant: int | None) -> int | None:
        return constant

    def make(self, making: Making) -> Drafter:
        return making.chain(SharedKeysSource(self.model, self.asked.target, making.mask))
