"""Regret: mismatches spend a budget over the whole text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.messages import Verification
from .base import Acceptor
from .registry import BEST, Formula, register, setting


@register
@dataclass(frozen=True)
class Regret(Acceptor):
    """Keep x iff it is the argmax, or ``r <= g·(tokens left)``, at most m a round, while the text's ``Σ r <= B``.

    Approximate Speculative Decoding (arXiv:2608.03447); ``r = max z - z(x)``, in nats, of the target's logits z. The
    tokens left are those of the draft from x on: a late token saves little and may cost little. Every text has its own
    budget for all rounds; tokens that other rules of a list keep count too. Correction: the argmax. Sampling is
    lossless.

    Parameters
    ----------
    total_regret
        B, of one text. 0 is lossless.
    local_regret
        g, per remaining drafted token, x included.
    mismatches
        m, of one round.
    """

    total_regret: float = setting(8.0, 0)
    local_regret: float = setting(0.25, 0)
    mismatches: int = setting(2, 0, integer=True)

    name = "regret"
    paper = "Approximate Speculative Decoding (arXiv:2608.03447)"
    formula = Formula(
        "Give every text a budget of B nats for tokens that are not the best one. A token late in the draft "
        "may cost less than an early one. The i-th of γ drafted tokens counts from 0. Sampling is lossless.",
        r"r_i \le g\,(\gamma - i), \quad \sum r \le B, \quad \text{at most } m \text{ mismatches a round};"
        r"\qquad r_i = \max z - z(x_i)",
        BEST,
        ({}, {"local_regret": 1.0}, {"local_regret": 2.0}),
        do_sample=False,
    )
    lossless_at = {"total_regret": 0.0}
    reads_draft = True
    has_budget = True
    drafts_until = 0.2
    lossless_when_sampling = True
    relaxes = "greedy"

    def keep(self, v: Verification) -> Tensor:
        shape, charge = v.shape, self.charge(v)
        if charge is None or 0 in (self.total_regret, self.local_regret):  # a tie is a mismatch without regret
            return v.lossless & v.allowed
        affordable = v.spent + shape.so_far(charge) <= self.total_regret
        few = shape.so_far((~v.lossless).long()) <= self.mismatches
        cheap = charge <= self.local_regret * shape.to_the_end.to(charge.dtype)
        return (v.lossless | (affordable & few & cheap)) & v.allowed

    def charge(self, v: Verification) -> Tensor | None:
        if v.do_sample:
            return None
        return (v.logits[:, :-1].amax(-1) - v.logit_x).masked_fill(v.lossless, 0.0)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        charge = self.charge(v)
        if charge is None:
            return super().quantities(v)
        return {"regret": charge, "regret so far": v.spent + v.shape.so_far(charge)}
