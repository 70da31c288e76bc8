"""Writers of responses: their interface, where responses end, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedModel

from .prompt_results import Ids, Prompt


@dataclass(frozen=True)
class ResponseLimits:
    """The tokens and the length (T_max) that end a response."""

    eos: frozenset[int]
    max_new_tokens: int

    def over(self, response: Sequence[int]) -> bool:
        """Tell whether a response is complete.

        Examples
        --------
        >>> limits = ResponseLimits(eos=frozenset({2}), max_new_tokens=4)
        >>> [limits.over(response) for response in ((), (5, 6), (5, 2), (5, 6, 7, 8))]
        [False, False, True, True]
        """
        return len(response) >= self.max_new_tokens or bool(response and self.ends(response[-1]))

    def ends(self, token: int) -> bool:
        """Tell whether a token ends a text."""
        return token in self.eos


def eos_of(model: PreTrainedModel) -> frozenset[int]:
    """Return the tokens that end a model's text."""
    eos = model.generation_config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset(torch.as_tensor(eos).flatten().tolist())


@dataclass(eq=False)
class ResponseCost:
    """The cost of mining one prompt: the tokens that the target has read.

    Behind an API, ``retokenised`` counts responses whose text has another tokenisation than the one with the tokens
    that were asked for.
    """

    target_tokens: int = 0
    retokenised: int = 0


class Writer(Protocol):
    """The interface of what finishes responses. A *slot* is one prompt's place; several are served at once."""

    def begin(self, slot: int, prompt: Prompt) -> None:
        """Let a free ``slot`` belong to a prompt."""

    def end(self, slot: int) -> ResponseCost:
        """Free ``slot``; return what its prompt has cost."""

    def submit(self, slot: int, prefix: Ids) -> None:
        """Ask for the rest of a response that begins with ``prefix``."""

    def step(self) -> Iterable[tuple[int, Ids]]:
        """Do some work; return the slots that are done, each with its whole response."""

    def busy(self) -> bool:
        """Tell whether a response that was asked for is not done."""

    def close(self) -> None:
        """Give up the responses that are not done."""
