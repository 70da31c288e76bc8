"""Classifiers of hidden states, scored on held-out tokens."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from ..heads import fold
from .examples import Examples

STRENGTHS = tuple(10.0**-k for k in range(7, -1, -1))
"""The grid of scikit-learn's ``C``, from the strongest regularisation to the weakest."""

# From appendix B of the AutoJudge paper; all else is scikit-learn's default.
MAX_ITER = 500
TREES, MIN_SAMPLES_LEAF = 128, 0.001
HIDDEN_UNITS = 128


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted pipeline of a standardisation and a classifier.

    ``train`` and ``validation`` are its probabilities ``(N,)`` of the True class on both sets.
    """

    classifier: Pipeline
    label: str
    train: NDArray[np.floating]
    validation: NDArray[np.floating]
    train_auc: float
    validation_auc: float
    seconds: float


def fit(classifier: Any, label: str, columns: Sequence[str], train: Examples, validation: Examples) -> Fit:
    pipeline = make_pipeline(StandardScaler(), classifier)
    start = time.perf_counter()
    with warnings.catch_warnings():
        # A fit that reaches the paper's limit of iterations is validated like any other.
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipeline.fit(train.features(columns), train.labels)
    seconds = time.perf_counter() - start
    sides = (train, validation)
    scores = [pipeline.predict_proba(side.features(columns))[:, 1] for side in sides]
    areas = (float(roc_auc_score(side.labels, p)) for side, p in zip(sides, scores, strict=True))
    return Fit(pipeline, label, *scores, *areas, seconds)


def fit_logistic(
    columns: Sequence[str],
    train: Examples,
    validation: Examples,
    *,
    strengths: Sequence[float] = STRENGTHS,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> list[Fit]:
    """Fit a logistic regression with L2 regularisation for each strength, scikit-learn's ``C``.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B.
    """
    fits = []
    for strength in strengths:
        regression = LogisticRegression(C=strength, max_iter=MAX_ITER)
        fits.append(fit(regression, f"logistic regression, C = {strength:g}", columns, train, validation))
        on_fit(fits[-1])
    return fits


def best(fits: Sequence[Fit]) -> Fit:
    """Return the fit with the highest validation AUC, the first among equals."""
    return max(fits, key=lambda fit: fit.validation_auc)


def fit_forest(columns: Sequence[str], train: Examples, validation: Examples, seed: int = 0) -> Fit:
    """Fit the paper's random forest: 128 trees, each leaf with 0.1 % of the tokens or more."""
    forest = RandomForestClassifier(TREES, min_samples_leaf=MIN_SAMPLES_LEAF, random_state=seed)
    return fit(forest, f"random forest, {TREES} trees", columns, train, validation)


def fit_mlp(columns: Sequence[str], train: Examples, validation: Examples, seed: int = 0) -> Fit:
    """Fit the paper's perceptron: one hidden layer of 128 ReLU units, stopped early on a tenth of the training set."""
    mlp = MLPClassifier((HIDDEN_UNITS,), early_stopping=True, random_state=seed)
    return fit(mlp, f"MLP, {HIDDEN_UNITS} hidden units", columns, train, validation)


def folded(chosen: Fit) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a fitted logistic regression as weight ``(d,)`` and bias ``()`` on raw states."""
    scaler, regression = chosen.classifier[0], chosen.classifier[-1]
    return fold(scaler.mean_, scaler.scale_, regression.coef_, regression.intercept_)
