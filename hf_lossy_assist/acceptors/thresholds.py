"""Two thresholds: one on the token's probability alone, one on its probability against a random number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.distributions import residual
from ..core.messages import Verification
from .base import GreedyRule
from .registry import Formula, register, setting


@register
@dataclass(frozen=True)
class Thresholds(GreedyRule):
    """Keep x iff ``u <= p(x) / t_acc`` or ``p(x) >= t_single``. Correction: lossless.

    SGLang's `--speculative-accept-threshold-acc` and `--speculative-accept-threshold-single`, for one draft rather
    than a tree. The published rule ignores q, so at (1, 1) it keeps fewer tokens than the lossless rule, with the same
    output distribution p; its correction is p with x removed, renormalised. Here x is also kept where the lossless
    rule keeps it. Greedy decoding has no u: x is kept iff it is the argmax of p or ``p(x) >= t_single``. (SGLang itself
    ignores both thresholds there.)

    Parameters
    ----------
    threshold_single
        The probability that is always enough, in [0, 1].
    threshold_acc
        The divisor of p(x) in the comparison with u, in [0, 1]; 0 keeps everything.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Thresholds
    >>> Thresholds(threshold_acc=0.5).is_lossless(do_sample=True), Thresholds().is_lossless(do_sample=True)
    (False, True)
    """

    threshold_single: float = setting(1.0, 0, 1)
    threshold_acc: float = setting(1.0, 0, 1)

    name = "thresholds"
    paper = "SGLang, `--speculative-accept-threshold-single` and `-acc`"
    formula = Formula(
        "SGLang's two thresholds: one probability is always enough, the other raises the chance of the rest.",
        r"u \le \frac{p(x)}{t_\text{acc}} \ \text{ or } p(x) \ge t_\text{single};"
        r"\qquad \text{greedy: } x = \mathrm{argmax}\, p \ \text{ or } p(x) \ge t_\text{single}",
        drawn=({}, {"threshold_single": 0.3}, {"threshold_acc": 0.5}),
        published=r"\mathrm{norm}(p \text{ without } x)",
    )
    usual = {"threshold_single": 0.3}
    lossless_at = {"threshold_single": 1.0, "threshold_acc": 1.0}
    lossless_when_sampling = True

    def is_lossless(self, do_sample: bool) -> bool:
        return self.threshold_single == 1 and (not do_sample or self.threshold_acc == 1)

    def keep_published(self, v: Verification) -> Tensor:
        drawn = self.threshold_acc * v.u <= v.p_untried if v.do_sample else v.lossless
        return (drawn | (v.p_x >= self.threshold_single)) & v.allowed

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        drawn = {"p/t_acc": v.p_untried / self.threshold_acc, "u": v.u} if v.do_sample and self.threshold_acc else {}
        return {**drawn, "threshold": torch.full_like(v.p_x, self.threshold_single), **super().quantities(v)}

    def correct_published(self, v: Verification, at: Tensor) -> Tensor:
        return residual(v.target_distribution(at), v.proposed(at))
