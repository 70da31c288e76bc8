"""Block verification: the lossless rule for drawn drafts, decided as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.distributions import residual
from ..core.messages import Verification
from .base import Acceptor


@dataclass(frozen=True)
class BlockLossless(Acceptor):
    """Keep the longest prefix ``x₁ … xᵢ`` with ``uᵢ < hᵢ``. Correction ~ ``norm([pᵢ·p - q]+)``.

    Sun et al. 2024 (arXiv 2403.10444, algorithm 2). ``pᵢ = min(1, pᵢ₋₁·p(xᵢ)/q(xᵢ))`` with ``p₀ = 1`` is how probably
    ``x₁ … xᵢ`` stay. With ``r = Σ [pᵢ·p - q]+`` of the distributions after ``xᵢ``, ``hᵢ = r / (r + 1 - pᵢ)``; after the
    last token it is ``pᵢ``. On average, at least as many tokens are kept as by deciding one by one. A draft's length
    may depend on the tokens drafted so far.
    """

    stays: Tensor  # (B, n) pᵢ

    name = "lossless"
    paper = "Sun et al. 2024 (arXiv:2403.10444), algorithm 2"
    lossless_at = {}
    lossless_when_sampling = True

    @classmethod
    def of(cls, v: Verification) -> BlockLossless:
        """Return the rule for one round's drafts, which have to have distributions."""
        together = v.ratio.log().cumsum(-1)
        return cls((together - together.cummax(-1).values.clamp(min=0)).exp())  # the recursion, as one sum

    def keep(self, v: Verification) -> Tensor:
        kept = (v.u < self._thresholds(v)) & v.allowed
        return kept.flip(-1).cumsum(-1).flip(-1) > 0  # whatever comes before a kept token stays too

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        p, q = v.p_and_q(at)
        before = pad(self.stays[:, :-1], (1, 0), value=1.0)
        return residual(before.gather(-1, at[:, None]) * p, q)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"p/q": v.ratio, "P(stays)": self.stays, "h": self._thresholds(v), "u": v.u}

    def _thresholds(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` hᵢ."""
        early = self.stays[:, :-1]
        rest = (early[..., None] * v.p[:, 1:-1]).sub_(v.q[:, 1:]).clamp_(min=0).sum(-1)
        # In this order: 1 + rest may round to 1.
        h = rest / (rest + (1 - early)).clamp(min=torch.finfo(rest.dtype).tiny)
        return torch.where(v.shape.to_the_end == 1, self.stays, pad(h, (0, 1)))
