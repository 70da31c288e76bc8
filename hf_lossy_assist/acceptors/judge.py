"""AutoJudge: a trained head tells whether a mismatch matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core.messages import Verification
from ..heads import JudgeHead
from .base import Acceptor
from .composed import HeadRule
from .registry import Formula, register, setting


@register
@dataclass(frozen=True)
class Judge(HeadRule):
    """Keep x iff the base rule keeps it, or the head finds it unimportant: ``P(important | state) < threshold``.

    AutoJudge (Garipov et al. 2025, section 3): a logistic regression on final hidden states, trained on which
    mismatches change a task's answer. All drafted positions are judged in one product of states and weights. A head
    that reads the draft model's state *after* x can't judge the round's last token; the base rule does.

    Parameters
    ----------
    head
        The trained head, from ``lossy_head``.
    threshold
        The probability of being important below which a token is kept; by default the head's own.
    recall
        Instead of a threshold: the share of important tokens to catch, looked up in the head's table.
    base
        The rule that the head adds to. In a list of rules the last one takes its place, and this is None.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> from hf_lossy_assist.acceptors import Judge
    >>> head = pairs.load("arithmetic").heads["judge"]
    >>> round(Judge(head).threshold, 3), round(Judge(head, recall=0.95).threshold, 3)
    (0.055, 0.742)
    """

    head: JudgeHead = field(metadata={"head": JudgeHead})
    recall: float | None = setting(None, 0, 1, instead_of="threshold")

    name = "judge"
    paper = "Garipov et al. 2025 (AutoJudge, arXiv:2504.20039), section 3"
    formula = Formula(
        "A trained head reads the hidden state and says how likely a mismatch is to change the answer.",
        r"\text{the base rule keeps } x, \text{ or } \sigma(w \cdot h + b) < \tau",
        r"\text{the base rule's}",
        ({"threshold": 0.05}, {"threshold": 0.5}, {"threshold": 0.9}),
    )
    lossless_at = {"threshold": 0.0}

    @property
    def needs(self) -> frozenset[str]:
        sources = {"target": "hidden", "draft": "draft_hidden"}
        own = frozenset(sources[name.split("_")[0]] for name in self.head.config.columns)
        return own if self.base is None else own | self.base.needs

    def head_threshold(self) -> float:
        return super().head_threshold() if self.recall is None else self.head.threshold_for(self.recall)

    def without_base(self) -> Acceptor:
        return replace(self, base=None, recall=None)

    def keep_by_head(self, v: Verification) -> Tensor:
        return (self._important(v) < self.threshold) & v.allowed  # NaN, of a missing state, is never below

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"P(important)": self._important(v), **super().quantities(v)}

    def _important(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` P(important); NaN for a missing state."""
        states = {}
        if v.hidden is not None:
            states |= {"target_previous": v.shape.at_tokens(v.hidden), "target_draft": v.hidden[:, 1:]}
        if v.draft_hidden is not None:
            states |= {"draft_previous": v.draft_hidden, "draft_draft": v.shape.next_drafted(v.draft_hidden)}
        parts = [states[name].to(self.head.weight.device).float() for name in self.head.config.columns]
        return self.head.probability(torch.cat(parts, dim=-1)).to(v.tokens.device)
