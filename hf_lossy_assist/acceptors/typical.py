"""Typical acceptance: the surer the target, the higher the bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from .base import Acceptor, check_number


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

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Typical
    >>> Typical()
    Typical(epsilon=0.09, delta=0.3)
    """

    epsilon: float = 0.09
    delta: float = 0.3

    name: ClassVar[str] = "typical"
    paper: ClassVar[str] = "Cai et al. 2024 (Medusa)"
    # A bar that nothing clears: every token is the target's own. exp(-H) >= 1/V, so δ has to exceed V.
    lossless_at: ClassVar[Mapping[str, Any]] = {"epsilon": 1.0, "delta": 1e9}
    lossless_when_sampling: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self.name, "epsilon", self.epsilon, 0, 1)
        check_number(self.name, "delta", self.delta, 0)

    def keep(self, v: Verification) -> Tensor:
        entropy = torch.special.entr(v.p[:, :-1]).sum(-1)
        return (v.p_x > (self.delta * torch.exp(-entropy)).clamp(max=self.epsilon)) & v.allowed

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_law(at)
