"""Relaxed acceptance: near enough to the best token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from ..sampling import point_mass
from .base import Acceptor, check_number
from .topk import rank


@dataclass(frozen=True)
class Relaxed(Acceptor):
    """Keep x iff it is among the N likeliest of p and ``p(x) >= max p - Δ``. Correction: the likeliest token.

    TensorRT-LLM's relaxed acceptance, which its authors use with N = 10, Δ = 0.6 in the reasoning phase only.

    Parameters
    ----------
    top_n
        How many tokens are eligible.
    delta
        How much less probable than the best token x may be. ``top_n=1`` is lossless greedy; so is ``delta=0``,
        but for ties.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Relaxed
    >>> Relaxed(top_n=10, delta=0.6)
    Relaxed(top_n=10, delta=0.6)
    """

    top_n: int = 1
    delta: float = 0.0

    name: ClassVar[str] = "relaxed"
    paper: ClassVar[str] = "TensorRT-LLM"
    lossless_at: ClassVar[Mapping[str, Any]] = {"top_n": 1, "delta": 0.0}

    def __post_init__(self) -> None:
        check_number(self.name, "top_n", self.top_n, 1, integer=True)
        check_number(self.name, "delta", self.delta, 0, 1)

    def is_lossless(self, do_sample: bool) -> bool:
        return not do_sample and self.top_n == 1

    def keep(self, v: Verification) -> Tensor:
        return (rank(v) < self.top_n) & (v.p_x >= v.max_p - self.delta) & v.allowed

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        rows = torch.arange(len(at), device=at.device)
        return point_mass(v.best[rows, at], v.logits)
