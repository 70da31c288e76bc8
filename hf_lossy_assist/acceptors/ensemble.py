"""Static ensemble: verify against a mixture of target and draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from .base import Acceptor, check_number


@dataclass(frozen=True)
class Ensemble(Acceptor):
    """Keep x iff ``u <= 1 - w + w·p(x)/q(x)``; greedy, iff ``x = argmax(w·p + (1-w)·q)``.

    DIVERSE, and `assistant_ensemble_weight` of transformers, whose implementation this rule agrees with.
    Correction ~ ``norm([p - q]+)``; greedy, the mixture's argmax. Unlike all other rules it can keep a token
    that the user's processors forbid, because the mixture gives it weight.

    Parameters
    ----------
    weight
        The target's share w of the mixture, in (0, 1]; 1 is lossless.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Ensemble
    >>> Ensemble(weight=0.9).is_lossless(do_sample=True)
    False
    """

    weight: float = 0.8

    name: ClassVar[str] = "ensemble"
    paper: ClassVar[str] = "DIVERSE (arXiv:2604.07622)"
    lossless_at: ClassVar[Mapping[str, Any]] = {"weight": 1.0}
    lossless_when_sampling: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self.name, "weight", self.weight, torch.finfo(torch.float32).eps, 1)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"draft_probs"})

    def keep(self, v: Verification) -> Tensor:
        if v.do_sample:
            return v.u <= 1 - self.weight + self.weight * v.ratio
        if self.weight == 1:
            return v.lossless
        mixture = self.weight * v.p[:, :-1] + (1 - self.weight) * v.q
        return v.tokens == mixture.argmax(-1)

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        if v.do_sample or self.weight == 1:
            return v.residual_law(at)
        rows = torch.arange(len(at), device=at.device)
        return self.weight * v.p[rows, at] + (1 - self.weight) * v.q[rows, at]
