"""Cactus: the lossless rule against a law near the target's that has more of the drafted token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from ..sampling import residual
from .base import Acceptor
from .registry import register, setting


@register
@dataclass(frozen=True)
class Cactus(Acceptor):
    """Keep x iff ``u <= h(x)/q(x)``, ``h(x) = min(1, p(x) + √(2δ·p(x)·(1 - p(x))))``. Correction ~ ``norm([h - q]+)``.

    Hao & Mou 2026, "Constrained Acceptance Speculative Sampling". h is the law that, to second order, has most of x
    among those with ``KL(h ‖ p) <= δ``; its other entries are p's, scaled by ``(1 - h(x)) / (1 - p(x))``. Exactly,
    ``KL(h ‖ p) <= ln(1 + 2δ) < 2δ``, attained where ``p(x) = 1/(1 + 2δ)``; for smaller p(x) and small δ it is about δ.
    Greedy decoding has no random threshold to relax, so there the rule is the lossless one. A drafter without a
    distribution was certain of its token, ``q(x) = 1``: then what comes out has exactly the law h.

    Parameters
    ----------
    delta
        δ, in nats; the paper's experiments go up to 1. 0 is lossless.
    """

    delta: float = setting(0.1, 0, 100)

    name = "cactus"
    paper = "Hao & Mou 2026 (Cactus, arXiv:2604.04987), section 2.2"
    needs = frozenset({"draft_or_point_mass"})
    lossless_at: ClassVar = {"delta": 0.0}
    lossless_when_sampling = True
    relaxes = "sampling"

    def keep(self, v: Verification) -> Tensor:
        if not v.do_sample:
            return v.lossless & v.allowed
        return (v.u * v.q_x <= self._raised(v.p_left)) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"h/q": self._raised(v.p_left) / v.q_x, "u": v.u} if v.do_sample else super().quantities(v)

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        if not v.do_sample:
            return v.target_distribution(at)
        rows = torch.arange(len(at), device=at.device)
        p, q, x = v.p[rows, at], v.q[rows, at], v.tokens.gather(-1, at[:, None])
        p_x = p.gather(-1, x)
        h_x = self._raised(p_x)
        h = (p * ((1 - h_x) / (1 - p_x).clamp(min=torch.finfo(p.dtype).tiny))).scatter(-1, x, h_x)
        return residual(h, q)

    def _raised(self, p: Tensor) -> Tensor:
        """Return h(x) for the drafted tokens' p(x)."""
        return (p + (2 * self.delta * p * (1 - p)).clamp(min=0).sqrt()).clamp(max=1)
