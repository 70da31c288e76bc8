"""Heads for tasks without a training split: each fold is judged by a head that has not seen it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ..errors import LossyValueError
from .classifiers import Fit
from .examples import Examples
from .judge import JudgeSettings, TrainedJudge, probabilities, train_judge
from .provenance import Origin


@dataclass(frozen=True, eq=False)
class FoldedJudges:
    """One head trained on everything, and one for each fold, trained on all the others.

    Attributes
    ----------
    final
        The head for new prompts.
    by_fold
        The head that measures a fold's prompts, by the fold's number.
    auc
        Share of the pairs of an important and an unimportant token, both of one fold, that the head which has not
        seen that fold ranks rightly. Probabilities of different heads are not compared: each has a threshold of its
        own.
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
    settings: JudgeSettings = JudgeSettings(),  # noqa: B008 - frozen
    *,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> FoldedJudges:
    """Train out-of-fold heads and a final one.

    Garipov et al. 2025 (AutoJudge), section 4.2: LiveCodeBench has no training split, so each of five folds is
    evaluated with the head of the four others. Regularisation and threshold are chosen inside those four.

    Parameters
    ----------
    examples
        Labelled mismatches.
    folds
        ``(N,)`` the fold of each token's prompt.
    origin, settings, on_fit
        As in :func:`~hf_lossy_assist.training.judge.train_judge`.

    Raises
    ------
    LossyValueError
        When there is one fold only, or what they leave can't be learnt from.
    """
    numbers = [int(fold) for fold in np.unique(folds)]
    if len(numbers) < 2:
        raise LossyValueError(f"`folds` has to name two folds or more, but names {numbers}")
    examples = examples.only(settings.columns)
    by_fold, areas, pairs = {}, [], []
    for fold in numbers:
        unseen = examples.where(folds == fold)
        trained = train_judge(examples.where(folds != fold), origin, settings, on_fit=on_fit, left_out_fold=fold)
        by_fold[fold] = trained
        if unseen.labels.any() and not unseen.labels.all():
            areas.append(roc_auc_score(unseen.labels, probabilities(trained.head, unseen)))
            pairs.append(unseen.labels.sum() * (~unseen.labels).sum())
    if not pairs:
        raise LossyValueError("`folds` have to have tokens of both classes, but each has one only; mine more prompts")
    final = train_judge(examples, origin, settings, on_fit=on_fit)
    auc = float(np.average(areas, weights=pairs))
    config = final.head.config
    final.head.config = replace(config, metrics={**config.metrics, "out_of_fold_auc": auc})
    return FoldedJudges(final, by_fold, auc)
