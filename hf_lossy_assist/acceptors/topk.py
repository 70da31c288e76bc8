"""Top-K: the token has to be one of the target's K likeliest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from .base import Acceptor
from .registry import register, setting


def rank(v: Verification) -> Tensor:
    """Return ``(B, n)`` how many tokens stand before x when p is sorted; ties go to the lower token id."""
    logits, x = v.logits[:, :-1], v.logit_x[..., None]
    earlier = torch.arange(logits.shape[-1], device=logits.device) < v.tokens[..., None]
    # On a CPU, sums of booleans take several times as long.
    return (logits > x).logical_or_((logits == x).logical_and_(earlier)).count_nonzero(-1)


@register
@dataclass(frozen=True)
class TopK(Acceptor):
    """Keep x iff it is among the K likeliest of p and ``log p(x) >= log max p - tolerance``. Correction: lossless.

    The baseline of AutoJudge (Garipov et al. 2025, section 4); `verifier_accept_k` and `accept_tolerance` of
    the speculators library.

    Parameters
    ----------
    k
        How many tokens are good enough; 1 is lossless greedy decoding.
    tolerance
        How far below the best token, in nats, x may be; infinite by default.
    """

    k: int = setting(2, 1, integer=True)
    tolerance: float = setting(float("inf"), 0)

    name = "topk"
    paper = "Garipov et al. 2025 (AutoJudge), section 4; speculators' `verifier_accept_k`"
    lossless_at: ClassVar = {"k": 1}

    def keep(self, v: Verification) -> Tensor:
        near = v.logit_x >= v.logits[:, :-1].amax(-1) - self.tolerance
        return (rank(v) < self.k) & near & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"rank": rank(v) + 1, "nats below the best": v.logits[:, :-1].amax(-1) - v.logit_x}
