"""No drafter: every round writes a token of the target's own."""

from __future__ import annotations

from typing import Self

from ...drafting import Drafter, NoDrafter
from .base import Asked, Kind, Making


class Nothing(Kind):
    """Nothing is drafted, because `num_assistant_tokens` is 0. The length chooses it, and no drafter of the call."""

    gives = frozenset({"static"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return None

    def longest(self, constant: int | None) -> int:
        return 0

    def make(self, making: Making) -> Drafter:
        return NoDrafter()
