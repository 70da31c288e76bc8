"""The interface of writers of responses, the ends of responses, and their cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .prompt_results import Ids, Prompt


@dataclass(frozen=True)
class ResponseLimits:
    """The tokens and the length (T_max) that end a response."""

    eos: frozenset[int]
    max_new_tokens: int

    def over(self, response: Sequence[int]) -> bool:
        return len(response) >= self.max_new_tokens or bool(response and self.ends(response[-1]))

    def ends(self, token: int) -> bool:
        return token in self.eos


@dataclass(eq=False)
class ResponseCost:
    """The cost of mining one prompt: the tokens that the target has read.

    ``retokenised`` counts an API's responses whose text is tokenised differently than its parts.
    """

    target_tokens: int = 0
    retokenised: int = 0


class Writer(Protocol):
    """Completes responses. Each prompt at work has a *slot*; several are served at once."""

    def begin(self, slot: int, prompt: Prompt, cost: ResponseCost) -> None:
        """Assign a free ``slot`` to a prompt, whose cost so far grows from now on."""

    def end(self, slot: int) -> None:
        """Free ``slot``."""

    def submit(self, slot: int, prefix: Ids) -> None:
        """Request the rest of a response that begins with ``prefix``."""

    def step(self) -> Iterable[tuple[int, Ids]]:
        """Do some work, and return the slots whose responses are complete, with these."""

    def busy(self) -> bool:
        """Tell whether a response is requested and incomplete."""

    def close(self) -> None:
        """Give up incomplete responses."""
