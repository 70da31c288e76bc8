"""Margin: the runner-up is good enough where the target hardly prefers its best token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.messages import Verification
from .base import Acceptor
from .registry import Formula, register, setting

_THETA = 0.9


@register
@dataclass(frozen=True)
class Margin(Acceptor):
    """Keep x iff the lossless rule keeps it, or x is second and ``z_2 / z_1 > θ``. Correction: lossless.

    When sampling, it also keeps the best token where the runner-up is that close, which the lossless rule may reject.

    Song et al. 2026, "MARS: Margin-Aware Verification"; z are the target's processed logits, and ``z_1`` has to be
    positive. The ratio changes when a constant is added to all logits, although p does not, so it says little about a
    model with large or negative logits. ``gap`` has no such flaw: ``log p_1 - log p_2 < gap``.

    Parameters
    ----------
    theta
        θ, as published. 1 is lossless greedy decoding.
    gap
        How much less likely than the best token the runner-up may be, in nats; replaces the ratio.
    """

    theta: float | None = setting(None, 0, 1, unset=f"{_THETA}")
    gap: float | None = setting(None, 0, instead_of="theta")

    name = "margin"
    paper = "Song et al. 2026 (MARS, arXiv:2601.15498)"
    formula = Formula(
        "Keep the target's second choice if its logit is near that of the first. When sampling, the first choice then "
        "stays, too; all else is left to `lossless`.",
        r"x = \mathrm{argmax}\, p, \text{ or } x \text{ is second and } \frac{z_{(2)}}{z_{(1)}} > \theta;"
        r"\qquad \text{gap: } \log p_{(1)} - \log p_{(2)} < \text{gap}",
        drawn=({"gap": 0.5}, {"gap": 2.0}),
        do_sample=False,
    )
    lossless_at = {"theta": 1.0}
    drafts_until = 0.3

    def keep(self, v: Verification) -> Tensor:
        first, second = v.logits[:, :-1].topk(2, dim=-1).values.unbind(-1)
        if self.gap is None:
            close = (first > 0) & (second > (_THETA if self.theta is None else self.theta) * first)
        else:
            close = first - second < self.gap
        return (v.lossless | (close & (v.logit_x >= second))) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        first, second = v.logits[:, :-1].topk(2, dim=-1).values.unbind(-1)
        return {"z2/z1": second / first} if self.gap is None else {"z1 - z2": first - second}
