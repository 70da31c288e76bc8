"""Min-p: the token needs a share of the best token's probability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.messages import Verification
from .base import GreedyRule
from .near_top import near_best
from .registry import Formula, register, setting
from .topk import rank


@register
@dataclass(frozen=True)
class MinP(GreedyRule):
    """Keep x iff ``p(x) >= τ·max p``, and x is among the N likeliest where ``top_n`` is set. Correction: lossless.

    AdaptiveSpec (arXiv:2609.02897), and the rule for greedy drafts in vLLM's pull request 43184. When sampling, x is
    also kept where the lossless rule keeps it.

    Parameters
    ----------
    tau
        The share of the best token's probability that x needs; 1 is lossless greedy decoding.
    top_n
        How many of the likeliest tokens are good enough; all of them where it is left out.

    Examples
    --------
    >>> import torch
    >>> from hf_lossy_assist.core.messages import Verification
    >>> p = torch.tensor([0.5, 0.3, 0.2])
    >>> v = Verification(torch.tensor([[0], [1], [2]]), p.log().expand(3, 2, -1))
    >>> MinP(tau=0.5).keep(v)[:, 0].tolist(), MinP(tau=0.1, top_n=2).keep(v)[:, 0].tolist()
    ([True, True, False], [True, True, False])
    """

    tau: float = setting(0.5, 0, 1)
    top_n: int | None = setting(None, 1, integer=True)

    name = "min_p"
    paper = "AdaptiveSpec (arXiv:2609.02897); vLLM's pull request 43184"
    formula = Formula(
        "Keep x if it has a given share of the best token's probability, and is among the N likeliest if N is set.",
        r"p(x) \ge \tau\,\max p \ \text{ and } \left|\{v : p(v) > p(x)\}\right| < N",
        drawn=({"tau": 0.5}, {"tau": 0.2}, {"tau": 0.2, "top_n": 2}),
        do_sample=False,
    )
    lossless_at = {"tau": 1.0}

    def keep_published(self, v: Verification) -> Tensor:
        near = near_best(v, self.tau) & v.allowed
        return near if self.top_n is None else near & (rank(v) < self.top_n)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"p / max p": v.p_x / v.max_p, "rank": rank(v) + 1, **super().quantities(v)}
