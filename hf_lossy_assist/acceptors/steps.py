"""SpecReason: the draft writes whole steps of a text, and the target scores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.steps import StepDrafting
from ..core.verification import Verification
from .base import Acceptor
from .lossless import Lossless
from .registry import TARGET, Formula, register, setting

QUESTION = (
    "\nIs the last step correct, and does it follow from the steps before it? Rate it from 0 (wrong) to 9 (right).\n"
    "Rating: "
)


@register
@dataclass(frozen=True)
class Steps(Acceptor):
    r"""Keep a whole drafted step iff the target scores it ``Σ d · p(d) >= threshold``; else the target writes the step.

    SpecReason (Pan et al. 2025, sections 4.1 and 4.2). The draft writes a step. The target reads it and a question in
    one forward, and answers with a digit from 0 to 9; the question is forgotten afterwards. The target's own step is
    written with speculative decoding: the draft proposes tokens, and the lossless rule decides. Needs ``tokenizer=``.

    The paper leaves choices open. The score is the expected digit among the ten, so that thresholds can be finer than
    the likeliest digit, which the paper takes. The question stands in the text itself, in no chat turn of its own;
    ``question`` may contain the tokens of turns.

    Parameters
    ----------
    threshold
        The least score of a step that is kept. 0 keeps every step, 10 none.
    longest
        The most tokens of a step.
    end
        The text that ends a step.
    question
        What the target is asked about the step before it; a digit has to be able to follow.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Steps
    >>> Steps(threshold=5, end="\n").step_drafting.longest
    128
    """

    threshold: float = setting(7, 0, 10)
    longest: int = setting(128, 1, integer=True)
    end: str = setting("\n\n", text=True)
    question: str | None = setting(None, text=True, unset="its own")

    name = "steps"
    paper = "SpecReason (arXiv:2504.07891), section 4"
    formula = Formula(
        "The draft writes a step up to a blank line, and the target scores it from 0 to 9. Below the threshold, the "
        "target writes the step.",
        r"\sum_{d=0}^{9} d \cdot p(d \mid \text{text, step, question}) \ge \tau"
        r" \text{ for the step that } x \text{ is in}",
        TARGET + r"\text{, and so on up to the step's end; no bonus token}",
        ({"threshold": 3}, {}, {"threshold": 9}),
    )
    needs = frozenset({"tokenizer"})
    lossless_at = {"threshold": 10}
    lossless_when_sampling = True
    decides_whole_drafts = True

    @property
    def step_drafting(self) -> StepDrafting:
        return StepDrafting(self.end, self.question or QUESTION, self.longest, self.name)

    def alone(self, v: Verification) -> Acceptor:
        return Lossless() if v.step_score is None else self

    def keep(self, v: Verification) -> Tensor:
        return (v.step_score >= self.threshold)[:, None] & v.allowed

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        # The target's own step does not depend on the draft's, so it begins with a draw from p, not from the residual.
        return v.target_distribution(at)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"score": v.step_score[:, None]}
