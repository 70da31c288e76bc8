"""Fuzzy speculative decoding: the draft decides where the two models agree well enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.distributions import js_divergence, kl_divergence, total_variation
from ..core.messages import Verification
from .base import GreedyRule
from .registry import Formula, register, setting

_DIVERGENCES = {"js": js_divergence, "kl": kl_divergence, "tv": total_variation}


@register
@dataclass(frozen=True)
class Fsd(GreedyRule):
    """Keep x iff ``D(p ‖ q) <= T`` at its position, for any x. Correction: lossless.

    Holsman et al. 2025, "Fuzzy Speculative Decoding" (section 3). D compares the processed distributions, in nats
    (0 ≤ JS ≤ ln 2, 0 ≤ TV ≤ 1), in greedy decoding too. With ``strict_above``, the lossless rule decides where the
    target is sure; together with ``divergence="kl"``, this is the training-free judge of Sun et al. 2026
    (arXiv:2601.04766). When sampling, x is also kept where the lossless rule keeps it; the published correction is a
    draw from p.

    Parameters
    ----------
    threshold
        T. At 0 no position is near enough. The default keeps the bundled pair's
        accuracy; 0.4 does not.
    divergence
        ``"js"`` (the paper's choice), ``"kl"`` or ``"tv"``.
    strict_above
        The lossless rule decides where ``max p`` is larger; 0.9 is the judge's choice, and 1 switches it off.
    """

    threshold: float = setting(0.1, 0)
    divergence: str = setting("js", choices=tuple(_DIVERGENCES))
    strict_above: float = setting(1.0, 0, 1)

    name = "fsd"
    paper = "Holsman et al. 2025 (Fuzzy Speculative Decoding, arXiv:2502.20704), section 3"
    formula = Formula(
        "Keep x, whichever token it is, if the two distributions are close at its position.",
        r"D(p \,\|\, q) \le T, \qquad D \in \{\mathrm{JS}, \mathrm{KL}, \mathrm{TV}\}",
        drawn=({"threshold": 0.02}, {"threshold": 0.1}, {"threshold": 0.1, "divergence": "kl"}),
        published="p",
    )
    needs = frozenset({"draft_probs"})
    lossless_at = {"threshold": 0.0}
    lossless_when_sampling = True

    def keep_published(self, v: Verification) -> Tensor:
        near = self._divergence(v) <= self.threshold
        if self.threshold == 0:  # rounding may hide a divergence
            near = torch.zeros_like(near)
        if self.strict_above < 1:
            near = torch.where(v.max_p > self.strict_above, v.lossless, near)
        return near & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {f"{self.divergence.upper()}(p, q)": self._divergence(v), **super().quantities(v)}

    def _divergence(self, v: Verification) -> Tensor:
        return _DIVERGENCES[self.divergence](v.p[:, :-1], v.q)

    def correct_published(self, v: Verification, at: Tensor) -> Tensor:
        if self.strict_above == 1:
            return v.target_distribution(at)
        sure = v.max_p.gather(-1, at[:, None]) > self.strict_above
        return torch.where(sure, v.residual_distribution(at), v.target_distribution(at))
