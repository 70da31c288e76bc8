"""Training of judge heads from labelled mismatches, and of verifier heads from ratios of probabilities."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from ..errors import LossyValueError
from ..heads import JudgeHead, ThresholdRow, VerifierConfig, VerifierHead, VerifierRow, columns, fold
from ..heads.judge_head import POSITIONS as JUDGE_POSITIONS
from ..heads.verifier_head import POSITIONS as VERIFIER_POSITIONS
from ..values import POSITIVE, PROBABILITY, SHARE, Checked, Rule, or_none
from .examples import Examples, Origin, Ratios, check
from .validation import (
    RECALLS,
    STRENGTHS,
    Trained,
    fit,
    largest_threshold,
    rates,
    recall_and_skipped,
)


@dataclass(frozen=True)
class JudgeSettings(Checked):
    """Settings for training a judge head; ``models`` and ``positions`` are those of :func:`.heads.columns`."""

    models: str = "target"
    positions: str | None = None  # None: "previous" or "draft", whichever is better out of fold
    # The share of important tokens that the default threshold has to find, out of fold.
    recall: Annotated[float, SHARE] = 0.9
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the folds

    def __post_init__(self) -> None:
        super().__post_init__()
        columns(self.models, "both" if self.positions is None else self.positions)

    @property
    def choices(self) -> tuple[str, ...]:
        return JUDGE_POSITIONS if self.positions is None else (self.positions,)

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


@dataclass(frozen=True)
class VerifierSettings(Checked):
    """Settings for training a verifier head."""

    # λ: a token is acceptable iff q(x) / p(x) <= λ; the paper's theorems assume 1.
    ratio: Annotated[float, POSITIVE] = 1.0
    # The state to read; None: the better one out of fold.
    position: Annotated[
        str | None, Rule(f"one of {[*VERIFIER_POSITIONS]} or None", (*VERIFIER_POSITIONS, None).__contains__)
    ] = None
    # A token is committed iff the head's probability is above it; 0.5 by default.
    threshold: Annotated[float | None, or_none(PROBABILITY)] = None
    # Instead of it: the share of acceptable tokens that has to be committed, out of fold.
    recall: Annotated[float | None, or_none(SHARE)] = None
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the folds

    def __post_init__(self) -> None:
        super().__post_init__()
        if None not in (self.threshold, self.recall):
            raise LossyValueError(
                f"`recall` chooses the threshold, but `threshold` is {self.threshold}; leave out either"
            )

    @property
    def positions(self) -> tuple[str, ...]:
        return VERIFIER_POSITIONS if self.position is None else (self.position,)


def train_verifier(
    ratios: Ratios,
    origin: Origin,
    settings: VerifierSettings = VerifierSettings(),
) -> Trained:
    """Train a verifier head: a standardisation and a logistic regression, folded into one weight and one bias.

    SPRINTER, section 3 (verifier architecture), appendix A.5 and figure 9: a linear layer and a sigmoid, by binary
    cross-entropy. Regularisation takes the place of Adam's early stop. The head that is returned has read all prompts.
    All figures and thresholds are out of fold. They also choose the position and the regularisation, so the better
    one's are a little too good.
    """
    examples = ratios.labelled(settings.ratio)
    check(examples.only(settings.positions))
    choices = {at: [at] for at in settings.positions}
    found = fit(choices, settings.strengths, examples, seed=settings.seed)
    scores = found.probabilities

    def threshold_for(recall: float) -> float:
        # A token of this probability is still above the threshold just below it.
        return float(np.nextafter(largest_threshold(examples, scores, recall), 0.0))

    usual = 0.5 if settings.threshold is None else settings.threshold
    threshold = usual if settings.recall is None else threshold_for(settings.recall)
    tpr, fpr = rates(examples, scores, threshold)
    weight, bias = fold(**found.linear)
    config = VerifierConfig(
        position=found.choice,
        ratio=settings.ratio,
        threshold=threshold,
        thresholds=tuple(
            VerifierRow(t, *rates(examples, scores, t)) for t in sorted({*map(threshold_for, RECALLS), threshold})
        ),
        metrics={**found.metrics, "tpr": tpr, "fpr": fpr},
        **origin.config_fields(asdict(settings)),
    )
    return Trained(VerifierHead(config, weight, bias), examples, scores, found.fitted)
