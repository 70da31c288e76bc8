"""AutoJudge: a trained head tells whether a mismatch matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..heads import JudgeHead
from ..messages import Verification
from .base import Acceptor, check_exclusive, check_number
from .lossless import Lossless


@dataclass(frozen=True)
class Judge(Acceptor):
    """Keep x iff the base rule keeps it, or the head finds it unimportant: ``P(important | state) < threshold``.

    AutoJudge (Garipov et al. 2025, section 3): a logistic regression on final hidden states, trained on which
    mismatches change a task's answer. Every drafted position is judged, in one product of states and weights.
    A head that reads the draft model's state *after* x can't judge the round's last token; the base rule does.

    Parameters
    ----------
    head
        The trained head, from ``lossy_head``.
    threshold
        The largest probability of being important at which a token is kept; the head's own by default.
    recall
        Instead of a threshold: the share of important tokens that are to be caught, looked up in the head's table.
    base
        The rule that the head comes on top of. In a list of rules that is the last one, and this is None.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import REGISTRY
    >>> REGISTRY["judge"].paper
    'Garipov et al. 2025 (AutoJudge)'
    """

    head: JudgeHead = field(metadata={"head": JudgeHead})
    threshold: float | None = None
    recall: float | None = None
    base: Acceptor | None = field(default_factory=Lossless, metadata={"internal": True})

    name: ClassVar[str] = "judge"
    paper: ClassVar[str] = "Garipov et al. 2025 (AutoJudge)"
    lossless_at: ClassVar[Mapping[str, Any]] = {"threshold": 0.0}
    lossless_when_sampling: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_exclusive(self.name, threshold=self.threshold, recall=self.recall)
        if self.recall is not None:
            check_number(self.name, "recall", self.recall, 0, 1)
            object.__setattr__(self, "threshold", self.head.threshold_for(self.recall))
        elif self.threshold is None:
            object.__setattr__(self, "threshold", self.head.config.threshold)
        check_number(self.name, "threshold", self.threshold, 0, 1)

    @property
    def needs(self) -> frozenset[str]:
        sources = {"target": "hidden", "draft": "draft_hidden"}
        own = frozenset(sources[name.split("_")[0]] for name in self.head.config.columns)
        return own if self.base is None else own | self.base.needs

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        self.head.check(target, draft)

    def without_base(self) -> Judge:
        return replace(self, base=None, recall=None)

    def keep(self, v: Verification) -> Tensor:
        states = {}
        if v.hidden is not None:
            states |= {"target_previous": v.hidden[:, :-1], "target_draft": v.hidden[:, 1:]}
        if v.draft_hidden is not None:
            after_last = torch.full_like(v.draft_hidden[:, :1], torch.nan)  # the draft has not read its last token
            states |= {
                "draft_previous": v.draft_hidden,
                "draft_draft": torch.cat([v.draft_hidden[:, 1:], after_last], dim=1),
            }
        parts = [states[name].to(self.head.weight.device).float() for name in self.head.config.columns]
        important = self.head.probability(torch.cat(parts, dim=-1)).to(v.tokens.device)
        unimportant = (important < self.threshold) & v.allowed  # never of a state that is missing
        return unimportant if self.base is None else unimportant | self.base.keep(v)

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.residual_law(at) if self.base is None else self.base.correction(v, at)
