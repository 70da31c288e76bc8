"""Recording what the models said about every token: the part of a round that is there only when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..acceptors import Acceptor
from ..decoding.row_decision import RowDecision
from ..messages import Decision, Draft, Verification
from .token_record import Judgement

LIKELIEST = 5
"""How many of the target's likeliest tokens are recorded, of those that the user's processors allow."""


@dataclass(frozen=True)
class Inspector:
    """Says of every token of a round what target, draft and rule said about it.

    Nothing is drawn here, so a run that is inspected gives the same text as one that is not.

    Attributes
    ----------
    acceptor
        The rule.
    """

    acceptor: Acceptor

    def judged(
        self, draft: Draft, v: Verification | None, decision: Decision | None, decisions: Sequence[RowDecision]
    ) -> list[RowDecision]:
        """Return a round's decisions with a judgement of each of their tokens."""
        ahead = _of_trusted(draft) if draft.trusted is not None else [[]] * len(decisions)
        decided = [[]] * len(decisions) if v is None else self._of_decided(v, decision, draft)
        return [
            replace(row, judgements=tuple([*first[: row.trusted], *then][: len(row.tokens)]))
            for row, first, then in zip(decisions, ahead, decided, strict=True)
        ]

    def _of_decided(self, v: Verification, decision: Decision, draft: Draft) -> list[list[Judgement]]:
        """Return a judgement of each token that the target decided, and of its own that follows."""
        quantities = self.acceptor.quantities(v) if len(v) else {}
        if draft.scores is not None:
            quantities = {"P(acceptable)": draft.scores.gather(-1, draft.first_undecided[:, None]), **quantities}
        if decision.path is not None:
            quantities = {name: x.expand_as(v.tokens).gather(-1, decision.path) for name, x in quantities.items()}
            v = v.along(decision.path)
        # What stands at each position, and what was drafted there.
        own, ends = decision.next_token[:, None], decision.n_accepted
        tokens = torch.cat([v.tokens, own], dim=-1).scatter(-1, ends[:, None], own)
        p, q = (_chances(law, tokens) for law in (v.p, _law_of_draft(v)))
        drafted, p_x, q_x = v.tokens.tolist(), v.p_x.tolist(), _chances(_law_of_draft(v), v.tokens)
        top = v.p.topk(min(LIKELIEST, v.p.shape[-1]))
        likeliest, shares = top.indices.tolist(), top.values.tolist()
        compared = {name: x.expand_as(v.tokens).tolist() for name, x in quantities.items()}
        # Where a chain's token was turned down; a tree may have had several there.
        turned_down = ends < (len(v) if v.lengths is None else v.lengths)
        replacing = (turned_down if decision.path is None else torch.zeros_like(turned_down)).tolist()

        def judgement(row: int, i: int, last: bool) -> Judgement:
            replaced = (drafted[row][i], p_x[row][i], q_x[row][i]) if last and replacing[row] else None
            numbers = {} if last and replaced is None else {name: x[row][i] for name, x in compared.items()}
            best = tuple(x for x in zip(likeliest[row][i], shares[row][i], strict=True) if x[1] > 0)
            return Judgement(p[row][i], q[row][i], best, _finite(numbers), replaced)

        return [[judgement(row, i, i == end) for i in range(end + 1)] for row, end in enumerate(ends.tolist())]


def _law_of_draft(v: Verification) -> Tensor | None:
    return None if v.draft_logits is None else v.q


def _chances(law: Tensor | None, tokens: Tensor) -> list[list[float | None]]:
    """Return the probabilities of ``tokens`` ``(B, m)`` by a law over as many positions; None for those it lacks."""
    there = 0 if law is None else min(law.shape[1], tokens.shape[1])
    found = [[]] * len(tokens) if law is None else law[:, :there].gather(-1, tokens[:, :there, None])[..., 0].tolist()
    return [row + [None] * (tokens.shape[1] - there) for row in found]


def _of_trusted(draft: Draft) -> list[list[Judgement]]:
    """Return a judgement of each token of a draft that the target was not asked about."""
    q = draft.logits.softmax(-1).gather(-1, draft.tokens[..., None])[..., 0].tolist()
    scores = draft.scores.tolist()
    return [
        [Judgement(q=a, quantities=_finite({"P(acceptable)": b})) for a, b in zip(*row, strict=True)]
        for row in zip(q, scores, strict=True)
    ]


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Leave out what was not to be had, such as a head's score of a state that is missing."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
