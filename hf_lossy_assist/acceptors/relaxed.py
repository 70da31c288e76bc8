"""Relaxed acceptance: the token has to be among the N best, and nearly as probable as the best one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.distributions import point_mass
from ..core.messages import Verification
from .base import GreedyRule
from .registry import BEST, Formula, register, setting
from .topk import rank


@register
@dataclass(frozen=True)
class Relaxed(GreedyRule):
    """Keep x iff it is among the N likeliest of p and ``p(x) >= max p - Δ``. Correction: lossless.

    TensorRT-LLM's relaxed acceptance, which its authors use with N = 10, Δ = 0.6 in the reasoning phase only. When
    sampling, x is also kept where the lossless rule keeps it; the published correction is the likeliest token.

    Parameters
    ----------
    top_n
        How many tokens are eligible.
    delta
        How much less probable than the best token x may be. ``top_n=1`` is lossless greedy decoding; so is
        ``delta=0``, except for ties.
    """

    top_n: int = setting(1, 1, integer=True)
    delta: float = setting(0.0, 0, 1)

    name = "relaxed"
    paper = "TensorRT-LLM, relaxed acceptance"
    formula = Formula(
        "Keep x if it is among the N likeliest tokens and at most Δ less probable than the best one.",
        r"\left|\{v : p(v) > p(x)\}\right| < N \ \text{ and } p(x) \ge \max p - \Delta",
        drawn=({"top_n": 10, "delta": 0.2}, {"top_n": 10, "delta": 0.6}, {"top_n": 2, "delta": 0.6}),
        do_sample=False,
        published=BEST,
    )
    usual = {"top_n": 10, "delta": 0.6}
    lossless_at = {"top_n": 1}

    def keep_published(self, v: Verification) -> Tensor:
        return (rank(v) < self.top_n) & (v.p_x >= v.max_p - self.delta) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"rank": rank(v) + 1, "max p - p": v.max_p - v.p_x, **super().quantities(v)}

    def correct_published(self, v: Verification, at: Tensor) -> Tensor:
        return point_mass(v.best.gather(-1, at[:, None])[:, 0], v.logits)
