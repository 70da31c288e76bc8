"""Training of judge heads from labelled mismatches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from ..heads import JudgeHead, ThresholdRow, columns
from ..heads.judge_head import POSITIONS
from ..values import Checked, Rule
from .examples import Examples, Origin, check
from .validation import (
    RECALLS,
    STRENGTHS,
    Trained,
    fit,
    largest_threshold,
    recall_and_skipped,
)


@dataclass(frozen=True)
class JudgeSettings(Checked):
    """Settings for training a judge head; ``models`` and ``positions`` are those of :func:`.heads.columns`."""

    models: str = "target"
    positions: str | None = None  # None: "previous" or "draft", whichever is better out of fold
    # The share of important tokens that the default threshold has to find, out of fold.
    recall: Annotated[float, Rule("above 0 and at most 1", lambda x: 0 < x <= 1)] = 0.9
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the folds

    def __post_init__(self) -> None:
        super().__post_init__()
        columns(self.models, "both" if self.positions is None else self.positions)

    @property
    def choices(self) -> tuple[str, ...]:
        return POSITIONS if self.positions is None else (self.positions,)

    @property
    def columns(self) -> list[str]:
        """The states that are tried."""
        return columns(self.models, "both" if self.positions is None else self.positions)


def train_judge(
    examples: Examples,
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
) -> Trained:
    """Train a judge head: a standardisation and a logistic regression, folded into one weight and one bias.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B. The head that is returned has seen all prompts. All
    figures and thresholds are out of fold: each prompt is judged by a classifier that has not seen its fold. Scores out
    of fold also choose the states and the regularisation, which makes figures a little too good.
    """
    examples = examples.only(settings.columns)
    check(examples)
    seed = settings.seed
    choices = {at: columns(settings.models, at) for at in settings.choices}
    found = fit(choices, settings.strengths, examples, seed=seed)
    scores = found.probabilities
    threshold = largest_threshold(examples, scores, settings.recall)
    table = sorted({largest_threshold(examples, scores, recall) for recall in {*RECALLS, settings.recall}})
    recall, skipped = recall_and_skipped(examples, scores, threshold)
    head = JudgeHead.from_linear(
        **found.linear, models=settings.models, positions=found.choice, threshold=threshold,
        thresholds=tuple(ThresholdRow(t, *recall_and_skipped(examples, scores, t)) for t in table),
        metrics={**found.metrics, "recall": recall, "skipped": skipped},
        **origin.config_fields(asdict(settings)),
    )  # fmt: skip
    return Trained(head, examples, scores, found.fitted)
