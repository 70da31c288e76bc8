"""SPRINTER: a trained head on the draft model lets tokens pass without the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..heads import VerifierHead
from ..messages import Verification
from .base import Acceptor, RunAhead, check_number
from .lossless import Lossless


@dataclass(frozen=True)
class Sprinter(Acceptor):
    """Commit drafted tokens unseen while ``P(acceptable | draft state) > threshold``; the target decides the next.

    SPRINTER (section 3, algorithm 2): sequential approximate verification. The first token that the head
    rejects, and every ``max_draft``-th in a row, is decided by the base rule; all before it stay. No bonus
    token: with one, the output law ``(1 - FPR) p + FPR q`` (theorem 1) would not hold.

    Parameters
    ----------
    head
        The trained head, from ``lossy_head``.
    threshold
        The least probability of being acceptable at which a token passes.
    max_draft
        The target decides at least every ``max_draft``-th token.
    base
        The rule that decides them. In a list of rules it is the rest of the list, and this is None.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import REGISTRY
    >>> REGISTRY["sprinter"].paper
    'SPRINTER'
    """

    head: VerifierHead = field(metadata={"head": VerifierHead})
    threshold: float = 0.5
    max_draft: int = 64
    base: Acceptor | None = field(default_factory=Lossless, metadata={"internal": True})

    name: ClassVar[str] = "sprinter"
    paper: ClassVar[str] = "SPRINTER"
    lossless_at: ClassVar[Mapping[str, Any]] = {"threshold": 1.0}
    lossless_when_sampling: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self.name, "threshold", self.threshold, 0, 1)
        check_number(self.name, "max_draft", self.max_draft, 1, integer=True)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"draft_probs"})  # of a draft model: its states are what the head reads

    @property
    def run_ahead(self) -> RunAhead:
        return RunAhead(self.head, self.threshold, self.max_draft)

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        self.head.check(target, draft)

    def without_base(self) -> Sprinter:
        return replace(self, base=None)

    def keep(self, v: Verification) -> Tensor:
        return torch.zeros_like(v.tokens, dtype=torch.bool) if self.base is None else self.base.keep(v)

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.residual_law(at) if self.base is None else self.base.correction(v, at)
