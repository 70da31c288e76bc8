"""Lenience: the lossless rule with q made smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.distributions import residual
from ..core.messages import Verification
from .base import Acceptor
from .near_top import near_best
from .registry import BEST, Formula, register, setting


@register
@dataclass(frozen=True)
class Lenience(Acceptor):
    """Keep x iff ``u <= p(x) / (ℓ·q(x))``; greedy, iff ``p(x) >= ℓ·max p``. Correction ~ ``norm([p - ℓ·q]+)``.

    Leviathan et al. 2023 (appendix A.5). The output has no token with more than ``1/ℓ`` times its probability under
    p; drafted tokens are kept with probability ``Σ min(p/ℓ, q)``. For a drafter without a distribution, ``q(x) = 1``.

    Parameters
    ----------
    factor
        ℓ in (0, 1]; 1 is lossless. The paper tries 0.5, 0.3 and 0.1.
    """

    factor: float = setting(0.5, torch.finfo(torch.float32).eps, 1)

    name = "lenience"
    paper = "Leviathan et al. 2023 (arXiv:2211.17192), appendix A.5"
    formula = Formula(
        "Divide the lossless threshold by ℓ, so that no token comes out with more than 1/ℓ times its probability.",
        r"u \le \frac{p(x)}{\ell\, q(x)}; \qquad \text{greedy: } p(x) \ge \ell\,\max p",
        r"\mathrm{norm}\left([p - \ell q]_+\right); \qquad \text{greedy: } " + BEST,
        ({"factor": 0.5}, {"factor": 0.3}),
    )
    needs = frozenset({"draft_or_point_mass"})
    lossless_at = {"factor": 1.0}
    lossless_when_sampling = True

    def keep(self, v: Verification) -> Tensor:
        kept = self.factor * v.u <= v.ratio if v.do_sample else near_best(v, self.factor)
        return kept & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"p/ℓq": v.ratio / self.factor, "u": v.u} if v.do_sample else {"p / max p": v.p_x / v.max_p}

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        if not v.do_sample:
            return v.target_distribution(at)
        p, q = v.p_and_q(at)
        return residual(p, self.factor * q)
