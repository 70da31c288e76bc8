"""Lossless: the target's own distribution, exactly."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..messages import Verification
from .base import Acceptor
from .registry import register


@register
@dataclass(frozen=True)
class Lossless(Acceptor):
    """Keep x iff ``u <= p(x) / q(x)``; greedy, iff ``x = argmax p``. Correction ~ ``norm([p - q]+)``.

    Leviathan et al. 2023 (section 2.3) and Chen et al. 2023. A drafter without a distribution counts as one
    that was certain of its token. If every position is kept with probability α, a round yields
    ``(1 - α^(γ+1)) / (1 - α)`` tokens.

    Examples
    --------
    >>> import torch
    >>> from hf_lossy_assist.acceptors import Lossless
    >>> from hf_lossy_assist.messages import Verification
    >>> v = Verification(tokens=torch.tensor([[2, 0]]), logits=torch.eye(3)[None, [2, 1, 0]])
    >>> Lossless().keep(v)
    tensor([[ True, False]])
    """

    name = "lossless"
    paper = "Leviathan et al. 2023, section 2.3; Chen et al. 2023"
    lossless_when_sampling = True

    def keep(self, v: Verification) -> Tensor:
        if v.do_sample:
            return v.lossless & v.allowed
        # What plain decoding would choose, which is never forbidden unless everything is.
        return v.lossless if v.drafted is None else v.lossless & v.drafted
