"""EARS: a threshold that falls where the target is unsure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.messages import Verification
from .base import Acceptor
from .registry import RESIDUAL, Formula, register, setting


@register
@dataclass(frozen=True)
class Ears(Acceptor):
    """Keep x iff ``p(x) / q(x) >= max(u - β·(1 - max p), 0)``. Correction ~ ``norm([p - q]+)``.

    Sun et al., "EARS: Efficient Adaptive Rejection Sampling" (section 3.2). Given x, the acceptance probability is
    ``min(1, p(x)/q(x) + β·(1 - max p))``. Greedy decoding is lossless. Unlike the formula, the rule never keeps a
    token with ``p(x) = 0``: forbidden tokens stay forbidden. For a drafter without a distribution, ``q(x) = 1``.

    Parameters
    ----------
    beta
        The tolerance per unit of the target's uncertainty; the paper uses 0.05 to 0.2. 0 is lossless.
    """

    beta: float = setting(0.1, 0, 1)

    name = "ears"
    paper = "Sun et al. 2025 (EARS, arXiv:2512.13194), section 3.2"
    formula = Formula(
        "Lower the random threshold where the target is unsure. Greedy decoding is lossless.",
        r"\frac{p(x)}{q(x)} \ge \max\left(u - \beta\,(1 - \max p),\, 0\right)",
        RESIDUAL,
        ({"beta": 0.1}, {"beta": 0.2}, {"beta": 1.0}),
    )
    needs = frozenset({"draft_or_point_mass"})
    lossless_at = {"beta": 0.0}
    lossless_when_sampling = True
    relaxes = "sampling"

    def keep(self, v: Verification) -> Tensor:
        if not v.do_sample:
            return v.lossless & v.allowed
        return (v.ratio >= self._threshold(v)) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"p/q": v.ratio, "threshold": self._threshold(v)} if v.do_sample else super().quantities(v)

    def _threshold(self, v: Verification) -> Tensor:
        return (v.u - self.beta * (1 - v.max_p)).clamp(min=0)
