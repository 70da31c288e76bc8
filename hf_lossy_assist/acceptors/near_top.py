"""Near the top: the token has to be almost as probable as the best one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.messages import Verification
from .base import Acceptor
from .registry import Formula, register, setting


def near_best(v: Verification, share: float) -> Tensor:
    """Return ``(B, n)`` whether ``p(x) >= share · max p``; at ``share = 1`` ties with the argmax do not count."""
    return v.tokens == v.best[:, :-1] if share == 1 else v.p_x >= share * v.max_p


@register
@dataclass(frozen=True)
class NearTop(Acceptor):
    """Keep x iff ``p(x) >= (1 - α)·max p``, or the lossless rule keeps it. Correction: lossless.

    After TokenV3 of "Faster Cascades via Speculative Decoding" (Narasimhan et al. 2025, section 4), which has no
    lossless rule to fall back on. A drafter without a distribution counts as certain of its token.

    Parameters
    ----------
    alpha
        How much less probable than the best token x may be, as a share; 0 is lossless greedy decoding.
    """

    alpha: float = setting(0.2, 0, 1)

    name = "near_top"
    paper = "Narasimhan et al. 2025 (Faster Cascades via Speculative Decoding, arXiv:2405.19261), section 4"
    formula = Formula(
        "Keep x if it is nearly as probable as the best token, or if `lossless` keeps it.",
        r"p(x) \ge (1 - \alpha)\,\max p \ \text{ or } u \le \frac{p(x)}{q(x)}",
        drawn=({"alpha": 0.2}, {"alpha": 0.5}),
    )
    needs = frozenset({"draft_or_point_mass"})
    lossless_at = {"alpha": 0.0}

    def keep(self, v: Verification) -> Tensor:
        return (near_best(v, 1 - self.alpha) | v.lossless) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"p / max p": v.p_x / v.max_p}
