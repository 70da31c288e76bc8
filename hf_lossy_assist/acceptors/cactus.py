"""Cactus: the lossless rule for a distribution near p that gives the drafted token more weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.distributions import residual
from ..core.messages import Verification
from .base import Acceptor
from .registry import Formula, register, setting


@register
@dataclass(frozen=True)
class Cactus(Acceptor):
    """Keep x iff ``u <= h(x)/q(x)``, ``h(x) = min(1, p(x) + √(2δ·p(x)·(1 - p(x))))``. Correction ~ ``norm([h - q]+)``.

    Hao & Mou 2026, "Constrained Acceptance Speculative Sampling". To second order, h gives x the largest probability
    among distributions with ``KL(h ‖ p) <= δ``; its other entries are p's, scaled by ``(1 - h(x)) / (1 - p(x))``. The
    exact bound is ``KL(h ‖ p) <= ln(1 + 2δ) < 2δ``, reached at ``p(x) = 1/(1 + 2δ)``. Greedy decoding is lossless.
    For a drafter without a distribution, ``q(x) = 1`` and the output has exactly the distribution h.

    Parameters
    ----------
    delta
        δ, in nats; the paper's experiments go up to 1. 0 is lossless.
    """

    delta: float = setting(0.1, 0, 100)

    name = "cactus"
    paper = "Hao & Mou 2026 (Cactus, arXiv:2604.04987), section 2.2"
    formula = Formula(
        "Sample from the distribution h that favours x as much as a divergence of about δ from p allows. "
        "Greedy decoding is lossless.",
        r"u \le \frac{h(x)}{q(x)}, \qquad h(x) = \min\left(1,\ p(x) + \sqrt{2\delta\,p(x)\,(1 - p(x))}\right)",
        r"\mathrm{norm}\left([h - q]_+\right), \quad h(v) = p(v)\,\frac{1 - h(x)}{1 - p(x)} \text{ for } v \ne x",
        ({"delta": 0.01}, {"delta": 0.1}),
    )
    needs = frozenset({"draft_or_point_mass"})
    lossless_at = {"delta": 0.0}
    lossless_when_sampling = True
    relaxes = "sampling"

    def keep(self, v: Verification) -> Tensor:
        if not v.do_sample:
            return v.lossless & v.allowed
        return (v.u * v.q_x <= self._raised(v.p_untried)) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"h/q": self._raised(v.p_untried) / v.q_x, "u": v.u} if v.do_sample else super().quantities(v)

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        if not v.do_sample:
            return v.target_distribution(at)
        p, q = v.p_and_q(at)
        x = v.tokens.gather(-1, at[:, None])
        p_x = p.gather(-1, x)
        h_x = self._raised(p_x)
        h = (p * ((1 - h_x) / (1 - p_x).clamp(min=torch.finfo(p.dtype).tiny))).scatter(-1, x, h_x)
        return residual(h, q)

    def _raised(self, p: Tensor) -> Tensor:
        """Return h(x) from p(x)."""
        return (p + (2 * self.delta * p * (1 - p)).clamp(min=0).sqrt()).clamp(max=1)
