"""Typical acceptance: the token's probability has to exceed a threshold that falls with the target's entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.distributions import entropy
from ..core.messages import Verification
from .base import Acceptor
from .registry import TARGET, Formula, register, setting


@register
@dataclass(frozen=True)
class Typical(Acceptor):
    """Keep x iff ``p(x) > min(ε, δ·exp(-H(p)))``. Correction: argmax of p, or a draw from p.

    Cai et al. 2024, "Medusa" (section 2.3.1), with the entropy H in nats.

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
    paper = "Cai et al. 2024 (Medusa), section 2.3.1"
    formula = Formula(
        "Keep x if the target gives it enough probability; where the target is unsure, less is enough.",
        r"p(x) > \min\left(\varepsilon,\ \delta\, e^{-H(p)}\right)",
        TARGET,
        ({}, {"epsilon": 0.2}, {"epsilon": 0.5, "delta": 1.0}),
        do_sample=False,
    )
    # No token exceeds the threshold, so all are the target's own: exp(-H) >= 1/V, and δ exceeds V.
    lossless_at = {"epsilon": 1.0, "delta": 1e9}
    drafts_until = 0.2
    lossless_when_sampling = True

    def keep(self, v: Verification) -> Tensor:
        return (v.p_x > self._threshold(v)) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"threshold": self._threshold(v)}

    def _threshold(self, v: Verification) -> Tensor:
        return (self.delta * torch.exp(-entropy(v.p[:, :-1]))).clamp(max=self.epsilon)

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_distribution(at)
