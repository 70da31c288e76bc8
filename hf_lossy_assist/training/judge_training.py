"""Training of judge heads from labelled mismatches: one for all prompts, and optionally one for each fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ..errors import LossyValueError
from ..heads import JudgeConfig, JudgeHead, ThresholdRow, columns
from .classifiers import STRENGTHS, Fit, best, fit_logistic, folded
from .examples import Examples, check
from .provenance import Origin
from .saving import Curve, save_with_roc
from .validation import RECALLS, auc_interval, both_classes, largest_threshold, recall_rows, validation_mask


@dataclass(frozen=True)
class JudgeSettings:
    """Settings for training a judge head; ``models`` and ``positions`` are those of :func:`.heads.columns`."""

    models: str = "target"
    positions: str = "draft"
    recall: float = 0.9  # the share of important validation tokens that the default threshold has to find
    validation_share: float = 0.1  # the share of the prompts that is kept for validation
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        columns(self.models, self.positions)
        if not 0 < self.recall <= 1:
            raise LossyValueError(f"`recall` has to be above 0 and at most 1, but is {self.recall}")
        if not 0 < self.validation_share < 1:
            raise LossyValueError(f"`validation_share` has to be between 0 and 1, but is {self.validation_share}")

    @property
    def columns(self) -> list[str]:
        return columns(self.models, self.positions)


@dataclass(frozen=True, eq=False)
class TrainedJudge:
    """A judge head, all fitted logistic regressions, and both sides of the split."""

    head: JudgeHead
    fits: tuple[Fit, ...]
    train: Examples
    validation: Examples

    def save(self, folder: Path) -> None:
        """Write the head, its model card and its ROC curves into ``folder``."""
        chosen = best(self.fits)
        curves = [
            Curve("validation", self.validation.labels, chosen.validation),
            Curve("training", self.train.labels, chosen.train, style=":"),
        ]
        shares = {"positive": "important tokens found", "others": "unimportant tokens taken for important"}
        save_with_roc(self.head, folder, curves, **shares)


def train_judge(
    examples: Examples,
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
    *,
    on_fit: Callable[[Fit], None] = lambda fit: None,
    **notes: Any,
) -> TrainedJudge:
    """Train a judge head: a standardisation and a logistic regression, folded into one weight and one bias.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B. The validation prompts choose the regularisation by
    ROC-AUC and the thresholds with the folded head. ``on_fit`` is called after each logistic regression; ``notes`` go
    into the head's provenance.
    """
    train, validation = split(examples.only(settings.columns), settings)
    fits = fit_logistic(settings.columns, train, validation, strengths=settings.strengths, on_fit=on_fit)
    chosen = best(fits)
    fields = origin.config_fields(asdict(settings), **notes)
    config = JudgeConfig(models=settings.models, positions=settings.positions, threshold=0.5, **fields)
    head = JudgeHead(config, *folded(chosen))
    # Measure the head as it is saved: folded, in float32.
    on_training, on_validation = (probabilities(head, side) for side in (train, validation))
    threshold = largest_threshold(validation.labels, on_validation, settings.recall)
    rows = recall_rows(validation.labels, on_validation, sorted({*RECALLS, settings.recall}))
    low, high = auc_interval(validation.labels, on_validation, validation.prompts, seed=settings.seed)
    metrics = {
        "auc": float(roc_auc_score(validation.labels, on_validation)),
        "auc_low": low,
        "auc_high": high,
        "train_auc": float(roc_auc_score(train.labels, on_training)),
        "C": float(chosen.classifier[-1].C),
        "recall": float((on_validation[validation.labels] >= threshold).mean()),
        "skipped": float((on_validation < threshold).mean()),
        **examples.counts(),
        **{f"validation_{name}": value for name, value in validation.counts().items()},
    }
    head.config = replace(
        config, threshold=threshold, thresholds=tuple(ThresholdRow(*row) for row in rows), metrics=metrics
    )
    return TrainedJudge(head, tuple(fits), train, validation)


def split(examples: Examples, settings: JudgeSettings) -> tuple[Examples, Examples]:
    """Return the training and the validation side, which depend on examples and settings alone."""
    check(examples)
    mask = validation_mask(examples.labels, examples.prompts, share=settings.validation_share, seed=settings.seed)
    return examples.where(~mask), examples.where(mask)


def probabilities(head: JudgeHead, examples: Examples) -> NDArray[np.float32]:
    return head.probability(torch.from_numpy(examples.features(head.config.columns))).numpy()


@dataclass(frozen=True, eq=False)
class JudgesByFold:
    """A head trained on all folds, and for each fold a head trained on the others.

    ``auc`` is the out-of-fold ROC-AUC: the mean over folds, weighted by their pairs of an important and an unimportant
    token. Each head has its own threshold, so their probabilities are not compared.
    """

    final: TrainedJudge
    by_fold: dict[int, TrainedJudge]
    auc: float

    def save(self, folder: Path) -> None:
        """Write the final head into ``folder``, and the others into its subfolders ``fold-0``, ``fold-1``, …."""
        for fold, trained in self.by_fold.items():
            trained.save(folder / f"fold-{fold}")
        self.final.save(folder)


def train_judges_by_fold(
    examples: Examples,
    folds: NDArray[np.int64],
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
    *,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> JudgesByFold:
    """Train a head for each fold on the other folds, and a final one on all of them.

    Garipov et al. 2025 (AutoJudge), section 4.2: LiveCodeBench has no training split, so each fold is evaluated with a
    head that has not seen it. Each head chooses its regularisation and threshold on its own training folds.
    """
    numbers = [int(fold) for fold in np.unique(folds)]
    if len(numbers) < 2:
        raise LossyValueError(f"`folds` has to name two folds or more, but names {numbers}")
    examples = examples.only(settings.columns)
    by_fold, areas, pairs = {}, [], []
    for fold in numbers:
        left_out = examples.where(folds == fold)
        trained = train_judge(examples.where(folds != fold), origin, settings, on_fit=on_fit, left_out_fold=fold)
        by_fold[fold] = trained
        if both_classes(left_out.labels):
            areas.append(roc_auc_score(left_out.labels, probabilities(trained.head, left_out)))
            pairs.append(left_out.labels.sum() * (~left_out.labels).sum())
    if not pairs:
        raise LossyValueError("`folds` have to have tokens of both classes, but each has one only; mine more prompts")
    final = train_judge(examples, origin, settings, on_fit=on_fit)
    auc = float(np.average(areas, weights=pairs))
    config = final.head.config
    final.head.config = replace(config, metrics={**config.metrics, "out_of_fold_auc": auc})
    return JudgesByFold(final, by_fold, auc)
