"""EARS: a threshold that relaxes where the target is unsure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..messages import Verification
from .base import Acceptor, check_number


@dataclass(frozen=True)
class Ears(Acceptor):
    """Keep x iff ``p(x) / q(x) >= max(u - β·(1 - max p), 0)``. Correction ~ ``norm([p - q]+)``.

    Sun et al., "EARS: Efficient Adaptive Rejection Sampling" (section 3.2). Given x, the acceptance
    probability is ``min(1, p(x)/q(x) + β·(1 - max p))``. Greedy decoding has no random threshold to relax,
    so there the rule is the lossless one.

    Parameters
    ----------
    beta
        The tolerance per unit of the target's uncertainty; the paper uses 0.05 to 0.2. 0 is lossless.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Ears
    >>> Ears(beta=0.2).needs
    frozenset({'draft_probs'})
    """

    beta: float = 0.1

    name: ClassVar[str] = "ears"
    paper: ClassVar[str] = "Sun et al., EARS"
    lossless_at: ClassVar[Mapping[str, Any]] = {"beta": 0.0}
    lossless_when_sampling: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self.name, "beta", self.beta, 0, 1)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"draft_probs"})

    def keep(self, v: Verification) -> Tensor:
        if not v.do_sample:
            return v.lossless & v.allowed
        threshold = (v.u - self.beta * (1 - v.max_p)).clamp(min=0)
        return (v.ratio >= threshold) & v.allowed

    def is_lossless(self, do_sample: bool) -> bool:
        return not do_sample or super().is_lossless(do_sample)

    def check_mode(self, do_sample: bool) -> str | None:
        if do_sample:
            return None
        return (
            "`lossy_mode='ears'` relaxes a random threshold, and greedy decoding (`do_sample=False`) has none: "
            "the run is lossless. Pass `do_sample=True`, or choose a rule that works greedily, e.g. 'dropmatch'."
        )
