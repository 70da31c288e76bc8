"""Training of judge heads from labelled mismatches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from ..heads import JudgeHead, ThresholdRow, columns
from ..heads.judge_head import POSITIONS
from ..values import Checked, Rule
from .examples import Examples, Origin, check
from .validation import (
    RECALLS,
    STRENGTHS,
    Curve,
    area_of,
    auc_of,
    best_state,
    both_classes,
    largest_threshold,
    recall_and_skipped,
    save_with_roc,
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


@dataclass(frozen=True, eq=False)
class TrainedJudge:
    """A judge head, fitted to all prompts.

    ``probabilities`` ``(N,)`` are those by classifiers that have not seen a token's fold, and ``fitted`` the head's.
    """

    head: JudgeHead
    examples: Examples
    probabilities: NDArray[np.floating]
    fitted: NDArray[np.floating]

    def save(self, folder: Path) -> None:
        """Write the head, its model card and its ROC curves into ``folder``."""
        out_of_fold = Curve("out of fold", self.examples, self.probabilities)
        curves = [out_of_fold, Curve("training", self.examples, self.fitted, style=":")]
        shares = {"positive": "important tokens found", "others": "unimportant tokens taken for important"}
        save_with_roc(self.head, folder, curves, **shares)


def train_judge(
    examples: Examples,
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
) -> TrainedJudge:
    """Train a judge head: a standardisation and a logistic regression, folded into one weight and one bias.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B. The head that is returned has seen all prompts. All
    figures and thresholds are out of fold: each prompt is judged by a classifier that has not seen its fold. Scores out
    of fold also choose the states and the regularisation, which makes figures a little too good.
    """
    examples = examples.only(settings.columns)
    check(examples)
    seed = settings.seed
    choices = {at: columns(settings.models, at) for at in settings.choices}
    at, crossed, states = best_state(choices, settings.strengths, examples, seed=seed)
    final, found = crossed.final(examples), crossed.probabilities
    fitted = final.predict_proba(examples.features(crossed.columns))[:, 1]
    threshold = largest_threshold(examples, found, settings.recall)
    table = sorted({largest_threshold(examples, found, recall) for recall in {*RECALLS, settings.recall}})
    recall, skipped = recall_and_skipped(examples, found, threshold)
    metrics = {
        **_solved(examples, found, seed),
        **area_of(examples, found, seed=seed),
        **{"train_auc": auc_of(examples, fitted), "recall": recall, "skipped": skipped},
        **states,
        **examples.counts(),
    }
    head = JudgeHead.from_linear(
        **_linear(final), models=settings.models, positions=at, threshold=threshold,
        thresholds=tuple(ThresholdRow(t, *recall_and_skipped(examples, found, t)) for t in table), metrics=metrics,
        **origin.config_fields(asdict(settings)),
    )  # fmt: skip
    return TrainedJudge(head, examples, found, fitted)


def _linear(pipeline: Pipeline) -> dict[str, NDArray[np.floating]]:
    """Return the arrays of a standardisation and a logistic regression."""
    scaler, regression = pipeline[0], pipeline[-1]
    return {"weight": regression.coef_, "bias": regression.intercept_, "mean": scaler.mean_, "scale": scaler.scale_}


def _solved(examples: Examples, scores: NDArray[np.floating], seed: int) -> dict[str, float]:
    """Return the area on the prompts that the target solves: only there does a label protect a right answer."""
    if examples.solved is None or examples.solved.all() or not both_classes(examples.labels[examples.solved]):
        return {}
    right = examples.where(examples.solved)
    return {
        **area_of(right, scores[examples.solved], seed=seed, name="auc_solved"),
        "solved_prompts": len(np.unique(right.prompts)),
    }
