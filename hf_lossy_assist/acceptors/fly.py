"""FLy: keep a mismatch where the target was unsure and agrees with the tokens that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.messages import Verification
from .base import Acceptor
from .registry import Formula, register, setting


@register
@dataclass(frozen=True)
class Fly(Acceptor):
    """Keep x iff it matches, or p is unsure there and the next ``W - 1`` drafted tokens match. Correction: lossless.

    Li et al. 2025, "Training-Free Loosely Speculative Decoding" (section 3). A match is a token that the lossless rule
    keeps. The target is unsure if the entropy of its k likeliest tokens, renormalised, is at least θ times its maximum
    ``ln k``. The window reads the target's distributions given the draft as it stands. A mismatch among the last
    ``W - 1`` drafted tokens has no full window and is replaced, so draft more than W tokens per round (the authors
    draft 15 and more).

    Parameters
    ----------
    window
        W, which counts the mismatch itself; 1 looks at the entropy only.
    theta
        The share of the largest possible entropy from which the target counts as unsure; above 1 it never does.
    k
        How many tokens the entropy is taken over.

    Examples
    --------
    >>> import torch
    >>> from hf_lossy_assist.acceptors import Fly
    >>> from hf_lossy_assist.core.messages import Verification
    >>> unsure, sure = [1.1, 1.0, 1.0], [9.0, 0.0, 0.0]
    >>> logits = torch.tensor([[unsure, sure, sure, unsure, sure, sure]])
    >>> Fly(window=3).keep(Verification(tokens=torch.tensor([[1, 0, 0, 2, 0]]), logits=logits))
    tensor([[ True,  True,  True, False,  True]])
    """

    window: int = setting(6, 1, integer=True)
    theta: float = setting(0.3, 0)
    k: int = setting(15, 2, integer=True)

    name = "fly"
    paper = "Li et al. 2025 (FLy, arXiv:2511.22972), section 3"
    formula = Formula(
        "Keep a mismatch if the target is unsure there and agrees with the draft afterwards. W is the "
        "window, mismatch included.",
        r"x \text{ matches, or } \frac{H(p_{\text{top } k})}{\ln k} \ge \theta"
        r" \text{ and the next } W - 1 \text{ drafted tokens match}",
        drawn=({}, {"theta": 0.6}, {"theta": 0.9}),
        do_sample=False,
    )
    lossless_at = {"theta": 2.0}
    reads_draft = True
    lossless_when_sampling = True

    def keep(self, v: Verification) -> Tensor:
        said = self.quantities(v)
        unsure = said["entropy"] >= said["threshold"]
        match = v.lossless & v.allowed
        return match | (unsure & v.shape.followed(match, self.window - 1) & v.allowed)

    def check_mode(self, do_sample: bool, longest: int | None = None) -> str | None:
        if longest is None or longest >= self.window:
            return super().check_mode(do_sample, longest)
        return (
            f"`lossy_mode` 'fly' changes nothing with drafts of {longest} tokens: with `window={self.window}` it keeps "
            f"mismatches that {self.window - 1} drafted tokens follow. Pass a larger `num_assistant_tokens` (its "
            "authors draft 15 and more), or a smaller `window`."
        )

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        top = v.logits[:, :-1].topk(min(self.k, v.logits.shape[-1])).values
        entropy = torch.special.entr(top.softmax(-1)).sum(-1).float()  # half precision holds no large `theta`
        return {"entropy": entropy, "threshold": torch.full_like(entropy, self.theta * math.log(max(2, top.shape[-1])))}
