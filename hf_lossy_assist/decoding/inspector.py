"""Records the models' probabilities of every token, for runs that are inspected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from ..acceptors import Acceptor
from ..core.messages import Decision, RowDecision, Verification
from ..core.statistics import TokenScores

LIKELIEST = 5
"""How many of the target's likeliest tokens are recorded, after the user's processors."""


def with_scores(
    rows: Sequence[RowDecision],
    acceptor: Acceptor,
    v: Verification,
    decision: Decision,
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> list[RowDecision]:
    """Return a round's decisions with the scores of each of their tokens.

    ``more`` are further quantities ``(B, n)`` of drafted tokens. This draws nothing, so the text stays as it is.
    """
    quantities = {**more, **(acceptor.decider(v).quantities(v) if len(v) else {})}
    compared = {name: decision.along_path(x.expand_as(v.tokens)).tolist() for name, x in quantities.items()}
    v = v.along(decision.path)
    # The output's token at each position, beside the drafted one.
    own, ends = decision.next_token[:, None], decision.n_accepted
    tokens = torch.cat([v.tokens, own], dim=-1).scatter(-1, ends[:, None], own)
    q_probs = None if v.draft_logits is None else v.q
    p, q = _chances(v.p, tokens), _chances(q_probs, tokens)
    drafted, p_x, q_x = v.tokens.tolist(), v.p_x.tolist(), _chances(q_probs, v.tokens)
    top = v.p.topk(min(LIKELIEST, v.p.shape[-1]))
    likeliest, shares = top.indices.tolist(), top.values.tolist()
    # A chain has one rejected token at its end; a tree may have several.
    replacing = (~decision.complete if decision.path is None else torch.zeros_like(decision.complete)).tolist()

    def scores(row: int, i: int, last: bool) -> TokenScores:
        replaced = (drafted[row][i], p_x[row][i], q_x[row][i]) if last and replacing[row] else None
        numbers = {} if last and replaced is None else {name: x[row][i] for name, x in compared.items()}
        best = tuple(x for x in zip(likeliest[row][i], shares[row][i], strict=True) if x[1] > 0)
        of_draft = q[row][i] if i < rows[row].drafted else None  # what fills shorter drafts up is nobody's
        return TokenScores(p[row][i], of_draft, best, finite(numbers), replaced)

    return [
        replace(row, scores=tuple(scores(number, i, i == end) for i in range(end + 1)))
        for number, (row, end) in enumerate(zip(rows, ends.tolist(), strict=True))
    ]


def _chances(probs: Tensor | None, tokens: Tensor) -> list[list[float | None]]:
    """Return the probabilities of ``tokens`` ``(B, m)`` at the positions of ``probs``; None without distributions."""
    if probs is None:
        return [[None] * tokens.shape[1] for _ in tokens]
    return probs.gather(-1, tokens[:, : probs.shape[1], None])[..., 0].tolist()


def finite(values: dict[str, float]) -> dict[str, float]:
    """Leave out missing quantities, such as a head's score of a missing state."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
