"""Lenience: the lossless rule with q made smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from ..sampling import residual
from .base import Acceptor, check_number
from .near_top import near_best


@dataclass(frozen=True)
class Lenience(Acceptor):
    """Keep x iff ``u <= p(x) / (ℓ·q(x))``; greedy, iff ``p(x) >= ℓ·max p``. Correction ~ ``norm([p - ℓ·q]+)``.

    Leviathan et al. 2023 (appendix A.5), for both modes. No token comes out with more than ``1/ℓ`` times its
    probability under p; drafted tokens are kept with probability ``Σ min(p/ℓ, q)``.

    Parameters
    ----------
    factor
        ℓ in (0, 1]; 1 is lossless. The paper tries 0.5, 0.3 and 0.1.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Lenience
    >>> Lenience(factor=1.0).is_lossless(do_sample=True)
    True
    """

    factor: float = 0.5

    name: ClassVar[str] = "lenience"
    paper: ClassVar[str] = "Leviathan et al. 2023, A.5"
    lossless_at: ClassVar[Mapping[str, Any]] = {"factor": 1.0}
    lossless_when_sampling: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self.name, "factor", self.factor, torch.finfo(torch.float32).eps, 1)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"draft_probs"})

    def keep(self, v: Verification) -> Tensor:
        kept = self.factor * v.u <= v.ratio if v.do_sample else near_best(v, self.factor)
        return kept & v.allowed

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        if not v.do_sample:
            return v.target_law(at)
        rows = torch.arange(len(at), device=at.device)
        return residual(v.p[rows, at], self.factor * v.q[rows, at])
