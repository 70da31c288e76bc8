"""Whole drafts in one go: forwards, LM head and choice of the next token."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from .forwards import filled_up


@dataclass(frozen=True)
class TokenChoice:
    """How a draft's next token follows from logits: it is ``drawn`` from so many tokens, or the likeliest where 0.

    ``processors`` look at no text, and ``settings`` tell them from others. ``vocabulary`` translates a draft's tokens
    where these are not the target's.
    """

    drawn: int = 0
    processors: LogitsProcessorList | None = None
    settings: Hashable = None
    vocabulary: Any = None

    @property
    def key(self) -> Hashable:
        return self.drawn, self.settings, self.vocabulary

    def context(self, tokens: Tensor) -> Tensor:
        """Return the draft's ids of the target's tokens."""
        return tokens if self.vocabulary is None else self.vocabulary.context(tokens)

    def __call__(self, logits: Tensor, waits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the next tokens ``(B, 1)`` and logits of q ``(B, 1, V)``; ``waits`` ``(B, 1, V)`` are random."""
        logits = logits[:, -1:].float()
        if self.vocabulary is not None:
            logits = self.vocabulary.logits(logits)
        if self.processors:
            logits = self.processors(None, logits[:, 0])[:, None]
        chosen_by = logits.softmax(-1) / waits if self.drawn else logits
        return chosen_by.argmax(-1), logits


class WholeDraft:
    """Drafts ``length`` tokens by ``body``, which takes ``rows`` rows: tokens ``(B, n)``, and logits ``(B, n, V)``."""

    def __init__(self, body: Callable[..., tuple[Tensor, Tensor]], length: int, rows: int, choice: TokenChoice) -> None:
        self.body = body
        self.length = length
        self.rows = rows
        self.choice = choice

    def __call__(self, **inputs: Any) -> tuple[Tensor, Tensor]:
        rows = next(len(x) for x in inputs.values() if isinstance(x, Tensor))
        inputs = {name: filled_up(x, rows, self.rows) for name, x in inputs.items()}
        return tuple(x[:rows].clone() for x in self.body(**inputs))


def chained(step: Callable[..., tuple[Tensor, Tensor]], length: int, waits: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the tokens and logits of ``length`` steps.

    ``step(i, token, waits)`` reads the last token, and returns the next with its logits.
    """
    tokens, logits = [], []
    for i in range(length):
        own = None if waits is None else waits[:, i : i + 1].contiguous()
        token, scores = step(i, tokens[-1] if i else None, own)
        tokens.append(token.clone())
        logits.append(scores.clone())
    return torch.cat(tokens, dim=1), torch.cat(logits, dim=1)
