"""Continuations that come back to the text that they left."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .prompt_results import Ids

_NUMBER = re.compile(r"\d+")

AHEAD = 32
"""The most tokens of an old text that are read at once."""


@dataclass(frozen=True)
class Rejoining:
    """What happens once the last tokens of a continuation are those of the old text.

    After ``look_up`` equal tokens, the rest of the old text is a draft that the target reads in parallel: the
    continuation stays what it would have been. After ``stop`` equal tokens, the rest counts as the target's own without
    being read, if the two passages before have the same numbers, as ``decode`` shows them. That is a guess: a greedy
    text is a function of its whole prefix, and may part again. None switches either off.
    """

    look_up: int | None = None
    stop: int | None = None
    decode: Callable[[Sequence[int]], str] = str

    @property
    def first(self) -> int | None:
        """How many equal tokens are looked for."""
        return min((n for n in (self.look_up, self.stop) if n is not None), default=None)


class OldText:
    """An old response, whose token at ``changed`` was replaced."""

    def __init__(self, how: Rejoining, tokens: Ids, changed: int) -> None:
        self.tokens, self._how, self._changed = tokens, how, changed
        self._ends: dict[Ids, list[int]] = {}
        k = how.first or 0
        for end in range(changed + 1 + k, len(tokens)) if k else ():
            self._ends.setdefault(tokens[end - k : end], []).append(end)

    def rejoined(self, new: Sequence[int]) -> int | None:
        """Return where the last tokens of ``new`` end in the old text, nearest to their own place; None if nowhere."""
        k = self._how.first or 0
        if len(new) < self._changed + 1 + k:
            return None
        ends = self._ends.get(tuple(new[len(new) - k :]), ())
        return min(ends, key=lambda end: abs(end - len(new)), default=None)

    def stops(self, new: Sequence[int], place: int, equal: int) -> bool:
        """Tell whether ``new``, whose last ``equal`` tokens are those before ``place``, may take over the rest."""
        if self._how.stop is None or equal < self._how.stop:
            return False
        passages = self.tokens[self._changed : place - equal], new[self._changed : len(new) - equal]
        old, own = (_NUMBER.findall(self._how.decode(tokens)) for tokens in passages)
        return old == own

    def ahead(self, place: int, equal: int) -> Ids:
        """Return the tokens of the old text from ``place`` on that are worth reading at once."""
        left = (self._how.stop or 0) - equal
        return self.tokens[place : place + (left if left > 0 else min(2 * equal, AHEAD))]
