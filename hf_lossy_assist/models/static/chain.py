"""Whole greedy drafts in one go: forwards, LM head and choice of the next token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .forwards import filled_up


class GreedyDraft:
    """Drafts ``length`` tokens greedily after ``(B, 2)`` tokens: the newest one, and the one before it, read again.

    So every draft has the same shape, whether or not the last one was kept whole. ``body`` gets what a forward gets,
    with positions ``(B, length + 1)``, and ``rows`` rows.
    """

    def __init__(self, body: Callable[..., tuple[Tensor, Tensor]], length: int, rows: int) -> None:
        self.body = body
        self.length = length
        self.rows = rows

    def __call__(self, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Return ``(B, length)`` tokens, and logits ``(B, length, V)``."""
        rows = len(inputs["input_ids"])
        inputs = {name: filled_up(x, rows, self.rows) for name, x in inputs.items()}
        tokens, logits = (x[:rows].clone() for x in self.body(**inputs))
        return tokens, logits


def chained(steps: Callable[[int], Callable[..., tuple[Tensor, Tensor]]], length: int) -> Callable[..., Any]:
    """Return the body of a :class:`GreedyDraft`; ``steps(n)`` reads n tokens and returns the next with its logits."""
    first, later = steps(2), steps(1)

    def body(input_ids: Tensor, position_ids: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
        token, scores = first(input_ids=input_ids, position_ids=position_ids[:, :2].contiguous(), **inputs)
        tokens, logits = [token.clone()], [scores.clone()]
        for i in range(2, length + 1):
            token, scores = later(input_ids=tokens[-1], position_ids=position_ids[:, i : i + 1].contiguous(), **inputs)
            tokens.append(token.clone())
            logits.append(scores.clone())
        return torch.cat(tokens, dim=1), torch.cat(logits, dim=1)

    return body
