"""Records the models' probabilities of every token, for runs that are inspected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..acceptors import Acceptor
from ..core.messages import Decision, Draft, RowDecision, Verification
from ..core.token_records import TokenScores

LIKELIEST = 5
"""How many of the target's likeliest tokens are recorded, after the user's processors."""


def with_scores(
    rows: Sequence[RowDecision], acceptor: Acceptor, draft: Draft, v: Verification | None, decision: Decision | None
) -> list[RowDecision]:
    """Return a round's decisions with the scores of each of their tokens.

    This draws nothing, so the text stays as it is.
    """
    ahead = _of_unverified(draft) if draft.unverified is not None else [[]] * len(rows)
    decided = [[]] * len(rows) if v is None else _of_decided(acceptor, v, decision, draft)
    return [
        replace(row, scores=tuple([*first[: row.unverified], *then][: len(row.tokens)]))
        for row, first, then in zip(rows, ahead, decided, strict=True)
    ]


def _of_decided(acceptor: Acceptor, v: Verification, decision: Decision, draft: Draft) -> list[list[TokenScores]]:
    """Return the scores of each token that the target decided, and of its own token that follows."""
    quantities = acceptor.alone(v).quantities(v) if len(v) else {}
    if draft.scores is not None:
        quantities = {"P(acceptable)": draft.scores.gather(-1, draft.first_undecided[:, None]), **quantities}
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
        return TokenScores(p[row][i], q[row][i], best, _finite(numbers), replaced)

    return [[scores(row, i, i == end) for i in range(end + 1)] for row, end in enumerate(ends.tolist())]


def _chances(probs: Tensor | None, tokens: Tensor) -> list[list[float | None]]:
    """Return the probabilities of ``tokens`` ``(B, m)`` position by position; None where there is no distribution."""
    if probs is None:
        return [[None] * tokens.shape[1] for _ in tokens]
    there = min(probs.shape[1], tokens.shape[1])
    found = probs[:, :there].gather(-1, tokens[:, :there, None])[..., 0].tolist()
    return [row + [None] * (tokens.shape[1] - there) for row in found]


def _of_unverified(draft: Draft) -> list[list[TokenScores]]:
    """Return the scores of each unverified token of a draft."""
    q = draft.logits.softmax(-1).gather(-1, draft.tokens[..., None])[..., 0].tolist()
    scores = draft.scores.tolist()
    return [
        [TokenScores(q=a, quantities=_finite({"P(acceptable)": b})) for a, b in zip(*row, strict=True)]
        for row in zip(q, scores, strict=True)
    ]


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Leave out missing quantities, such as a head's score of a missing state."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
