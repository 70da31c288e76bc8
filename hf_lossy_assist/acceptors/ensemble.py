"""Static ensemble: verification against a mixture of target and draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.messages import Verification
from .base import Acceptor
from .registry import RESIDUAL, Formula, register, setting


@register
@dataclass(frozen=True)
class Ensemble(Acceptor):
    """Keep x iff ``u <= 1 - w + w·p(x)/q(x)``; greedy, iff ``x = argmax(w·p + (1-w)·q)``.

    DIVERSE, and `assistant_ensemble_weight` of transformers, with which this rule agrees. Correction ~
    ``norm([p - q]+)``; greedy, the mixture's argmax. Unlike all other rules it can keep a token that the user's
    processors forbid, because the mixture gives it weight. For a drafter without a distribution, ``q(x) = 1``.

    Parameters
    ----------
    weight
        The target's share w of the mixture, in (0, 1]; 1 is lossless.
    """

    weight: float = setting(0.8, torch.finfo(torch.float32).eps, 1)

    name = "ensemble"
    paper = "DIVERSE (arXiv:2604.07622); transformers' `assistant_ensemble_weight`"
    formula = Formula(
        "Decode from a mixture of target and draft, of which the target has the share w.",
        r"u \le 1 - w + w\,\frac{p(x)}{q(x)}; \qquad \text{greedy: } x = \mathrm{argmax}(w\,p + (1 - w)\,q)",
        RESIDUAL + r"; \qquad \text{greedy: } \mathrm{argmax}(w\,p + (1 - w)\,q)",
        ({"weight": 0.8}, {"weight": 0.5}),
    )
    needs = frozenset({"draft_or_point_mass"})
    lossless_at = {"weight": 1.0}
    lossless_when_sampling = True
    corrects_greedily = True

    def keep(self, v: Verification) -> Tensor:
        if v.do_sample:
            return v.u <= 1 - self.weight + self.weight * v.ratio
        if self.weight == 1:
            return v.lossless
        mixture = self.weight * v.p[:, :-1] + (1 - self.weight) * v.q
        return v.tokens == mixture.argmax(-1)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        if v.do_sample:
            return {"1 - w + w·p/q": 1 - self.weight + self.weight * v.ratio, "u": v.u}
        mixture = self.weight * v.p[:, :-1] + (1 - self.weight) * v.q
        return {"mixture": mixture.gather(-1, v.tokens[..., None])[..., 0], "mixture's best": mixture.amax(-1)}

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        if v.do_sample or self.weight == 1:
            return v.residual_distribution(at)
        p, q = v.p_and_q(at)
        return self.weight * p + (1 - self.weight) * q
