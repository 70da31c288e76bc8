"""Near the top: almost as probable as the best token is good enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..messages import Verification
from .base import Acceptor, check_number


def near_best(v: Verification, share: float) -> Tensor:
    """Return ``(B, n)`` whether ``p(x) >= share · max p``; at ``share = 1`` ties with the argmax do not count."""
    return v.tokens == v.best[:, :-1] if share == 1 else v.p_x >= share * v.max_p


@dataclass(frozen=True)
class NearTop(Acceptor):
    """Keep x iff ``p(x) >= (1 - α)·max p``, or the lossless rule keeps it. Correction: lossless.

    After TokenV3 of "Faster Cascades via Speculative Decoding" (Narasimhan et al. 2025, section 4), which has no
    lossless rule to fall back on.

    Parameters
    ----------
    alpha
        How much less probable than the best token x may be, as a share; 0 is lossless greedy decoding.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import NearTop
    >>> NearTop(alpha=0.3)
    NearTop(alpha=0.3)
    """

    alpha: float = 0.2

    name: ClassVar[str] = "near_top"
    paper: ClassVar[str] = "Narasimhan et al. 2025 (cascades)"
    lossless_at: ClassVar[Mapping[str, Any]] = {"alpha": 0.0}

    def __post_init__(self) -> None:
        check_number(self.name, "alpha", self.alpha, 0, 1)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"draft_probs"})

    def keep(self, v: Verification) -> Tensor:
        return (near_best(v, 1 - self.alpha) | v.lossless) & v.allowed
