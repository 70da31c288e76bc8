"""Typical acceptance: the token's probability has to exceed a threshold that falls with the target's entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.distributions import entropy
from ..core.messages import Verification
from .base import GreedyRule
from .registry import Formula, register, setting


@register
@dataclass(frozen=True)
class Typical(GreedyRule):
    """Keep x iff ``p(x) > min(ε, δ·exp(-H(p)))``. Correction: lossless.

    Cai et al. 2024, "Medusa" (section 2.3.1), with the entropy H in nats. When sampling, x is also kept where the
    lossless rule keeps it; the published correction is a draw from p.

    Parameters
    ----------
    epsilon
        The probability that is always enough.
    delta
        The share of the effective number of choices ``exp(-H)`` that is enough where the target is unsure.
    """

    epsilon: float = setting(0.09, 0, 1)
    delta: float = setting(0.3, 0)

    name = "typical"
    paper = "Cai et al. 2024 (Medusa, arXiv:2401.10774), section 2.3.1"
    formula = Formula(
        "Keep x if the target gives it enough probability; where the target is unsure, less is enough.",
        r"p(x) > \min\left(\varepsilon,\ \delta\, e^{-H(p)}\right)",
        drawn=({}, {"epsilon": 0.2}, {"epsilon": 0.5, "delta": 1.0}),
        do_sample=False,
        published="p",
    )
    # No token exceeds the threshold: exp(-H) >= 1/V, and δ exceeds V.
    lossless_at = {"epsilon": 1.0, "delta": 1e9}
    drafts_until = 0.2
    lossless_when_sampling = True

    def keep_published(self, v: Verification) -> Tensor:
        return (v.p_x > self._threshold(v)) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"threshold": self._threshold(v), **super().quantities(v)}

    def _threshold(self, v: Verification) -> Tensor:
        return (self.delta * torch.exp(-entropy(v.p[:, :-1]))).clamp(max=self.epsilon)

    def correct_published(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_distribution(at)
