"""Fuzzy speculative decoding: where the two models agree well enough, the draft decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from .base import Acceptor, check_choice, check_number
from .dropmatch import js_divergence


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return ``KL(p ‖ q)`` in nats over the last dimension; infinite where q lacks a token of p."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Return ``Σ |p - q| / 2`` over the last dimension, in [0, 1]."""
    return (p - q).abs().sum(-1) / 2


_DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "js": js_divergence,
    "kl": kl_divergence,
    "tv": total_variation,
}


@dataclass(frozen=True)
class Fsd(Acceptor):
    """Keep x iff ``D(p ‖ q) <= T`` at its position, whatever x is. Correction: argmax of p, or a draw from p.

    Holsman et al. 2025, "Fuzzy Speculative Decoding" (section 3). D compares the laws after all processors,
    soft also in greedy decoding, and in nats (0 ≤ JS ≤ ln 2, 0 ≤ TV ≤ 1).

    Parameters
    ----------
    threshold
        T. At 0 nothing is kept, and every token is the target's own. The default keeps the bundled pair's
        accuracy; 0.4 does not.
    divergence
        ``"js"`` (the paper's choice), ``"kl"`` or ``"tv"``.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Fsd
    >>> Fsd(divergence="tv")
    Fsd(threshold=0.1, divergence='tv')
    """

    threshold: float = 0.1
    divergence: str = "js"

    name: ClassVar[str] = "fsd"
    paper: ClassVar[str] = "Holsman et al. 2025 (FSD)"
    lossless_at: ClassVar[Mapping[str, Any]] = {"threshold": 0.0}
    lossless_when_sampling: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self.name, "threshold", self.threshold, 0)
        check_choice(self.name, "divergence", self.divergence, tuple(_DIVERGENCES))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"draft_probs"})

    def keep(self, v: Verification) -> Tensor:
        if self.threshold == 0:  # rounding may find no divergence where there is one
            return torch.zeros_like(v.allowed)
        return (_DIVERGENCES[self.divergence](v.p[:, :-1], v.q) <= self.threshold) & v.allowed

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_law(at)
