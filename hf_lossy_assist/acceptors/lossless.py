"""Lossless: the target's own distribution, exactly."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.messages import Verification
from .base import Acceptor
from .block import BlockLossless
from .registry import BEST, LOSSLESS, Formula, register, setting


@register
@dataclass(frozen=True)
class Lossless(Acceptor):
    """Keep x iff ``u <= p(x) / q(x)``; greedy, iff ``x = argmax p``. Correction ~ ``norm([p - q]+)``.

    Leviathan et al. 2023 (section 2.3) and Chen et al. 2023. A drafter without a distribution counts as certain of its
    token. If every position is kept with probability α, a round yields ``(1 - α^(γ+1)) / (1 - α)`` tokens.
    :class:`~hf_lossy_assist.acceptors.block.BlockLossless` decides drafts as wholes.

    Parameters
    ----------
    verification
        How drawn drafts are decided: token by token, or as wholes (``"block"``), which on average keeps at least as
        many tokens. ``"block"`` needs the draft's distribution, and can't stand in a list of rules. Greedily both are
        the same.

    Examples
    --------
    >>> import torch
    >>> from hf_lossy_assist.acceptors import Lossless
    >>> from hf_lossy_assist.core.messages import Verification
    >>> v = Verification(tokens=torch.tensor([[2, 0]]), logits=torch.eye(3)[None, [2, 1, 0]])
    >>> Lossless().keep(v)
    tensor([[ True, False]])
    """

    verification: str = setting("token", choices=("token", "block"))

    name = "lossless"
    paper = (
        "Leviathan et al. 2023 (arXiv:2211.17192), section 2.3; Chen et al. 2023 (arXiv:2302.01318); "
        "block: Sun et al. 2024 (arXiv:2403.10444)"
    )
    formula = Formula(
        "The rule of speculative sampling: the output has the target's distribution.",
        r"u \le \frac{p(x)}{q(x)}; \qquad \text{greedy: } x = " + BEST + r"; \qquad "
        r"\text{block, for } x = x_i: u_j < h_j \text{ for a } j \ge i,\ "
        r"h_j = \frac{\sum [p_j p - q]_+}{\sum [p_j p - q]_+ + 1 - p_j},\ h_\gamma = p_\gamma,\ "
        r"p_j = \min\left(1, p_{j-1} \frac{p(x_j)}{q(x_j)}\right)",
        LOSSLESS + r"; \qquad \text{block, after } x_i: \mathrm{norm}\left([p_i p - q]_+\right)",
    )
    without_q = {"verification": "token"}
    lossless_at = {}
    lossless_when_sampling = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"draft_probs"} if self.decides_whole_drafts else ())

    @property
    def decides_whole_drafts(self) -> bool:
        return self.verification == "block"

    def decider(self, v: Verification) -> Acceptor:
        return BlockLossless.of(v) if v.do_sample and self.decides_whole_drafts else self

    def keep(self, v: Verification) -> Tensor:
        if v.do_sample:
            return v.lossless & v.allowed
        # The target's argmax is forbidden only if every token is.
        return v.lossless if v.shape.drafted is None else v.lossless & v.shape.drafted
