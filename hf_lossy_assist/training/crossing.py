"""Figures out of fold: each prompt is judged by a fit that has not seen it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter

from ..errors import LossyValueError
from .examples import Examples
from .validation import auc_draws, auc_of, both_classes, interval


@dataclass(frozen=True, eq=False)
class Crossed:
    """One kind of classifier, each prompt judged by a fit that has not seen it.

    ``probabilities`` ``(N,)`` are those of the True class. ``by_fold`` has the fit that left each fold out, ``chosen``
    the best of the classifiers over all folds.
    """

    probabilities: NDArray[np.floating]
    by_fold: Mapping[int, Pipeline]
    chosen: Any
    seconds: float


def fit(classifier: Any, columns: Sequence[str], examples: Examples) -> Pipeline:
    """Fit a standardisation and a classifier, or several steps, which get weights and prompts if they take them."""
    steps = classifier if isinstance(classifier, tuple) else (classifier,)
    pipeline = make_pipeline(StandardScaler(), *map(clone, steps))
    weights = examples.weights / examples.weights.mean()
    with warnings.catch_warnings():
        # A fit that reaches the paper's limit of iterations is validated like any other.
        warnings.simplefilter("ignore", ConvergenceWarning)
        given = {"sample_weight": weights, "groups": examples.prompts}
        options = {
            f"{name}__{argument}": value
            for name, step in pipeline.steps
            for argument, value in given.items()
            if has_fit_parameter(step, argument)
        }
        return pipeline.fit(examples.features(columns), examples.labels, **options)


def cross(
    classifiers: Sequence[Any],
    columns: Sequence[str],
    examples: Examples,
    folds: NDArray[np.int64],
    *,
    on_fit: Callable[[], None] = lambda: None,
) -> Crossed:
    """Fit each classifier once for each fold, without it, and choose among classifiers.

    For each fold, the ROC-AUC on the *other* folds chooses the classifier. The fits that are scored there have seen
    this fold, so its labels have a small say.
    """
    start = time.perf_counter()
    scores, fits = np.empty((len(classifiers), len(examples))), {}
    for fold in np.unique(folds):
        inside = folds == fold
        others, left_out = examples.where(~inside), examples.where(inside).features(columns)
        for i, classifier in enumerate(classifiers):
            fits[i, int(fold)] = fit(classifier, columns, others)
            scores[i, inside] = fits[i, int(fold)].predict_proba(left_out)[:, 1]
            on_fit()

    def best(mask: NDArray[np.bool_]) -> int:
        labels, weights = examples.labels[mask], examples.weights[mask]
        areas = [roc_auc_score(labels, row[mask], sample_weight=weights) for row in scores]
        return int(np.argmax(areas))

    probabilities, by_fold = np.empty(len(examples)), {}
    for fold in np.unique(folds):
        chosen = best(folds != fold)
        probabilities[folds == fold] = scores[chosen, folds == fold]
        by_fold[int(fold)] = fits[chosen, int(fold)]
    chosen = classifiers[best(np.ones(len(folds), dtype=bool))]
    return Crossed(probabilities, by_fold, chosen, time.perf_counter() - start)


def learning_curve(
    classifier: Any, columns: Sequence[str], examples: Examples, folds: NDArray[np.int64], *, seed: int
) -> dict[str, float]:
    """Return the out-of-fold ROC-AUC of heads that have seen an eighth, a quarter and a half of the other folds."""
    rng = np.random.default_rng(seed)
    found = {}
    for part in (8, 4, 2):
        scores = np.empty(len(examples))
        seen = []
        for fold in np.unique(folds):
            others = np.unique(examples.prompts[folds != fold])
            some = rng.permutation(others)[: max(2, len(others) // part)]
            mask = np.isin(examples.prompts, some)
            if not both_classes(examples.labels[mask]):
                break
            try:
                pipeline = fit(classifier, columns, examples.where(mask))
            except LossyValueError:  # so few prompts are not enough to stop early on
                break
            inside = folds == fold
            scores[inside] = pipeline.predict_proba(examples.where(inside).features(columns))[:, 1]
            seen.append(len(some))
        else:
            found[f"auc_from_{round(float(np.mean(seen)))}_prompts"] = auc_of(examples, scores)
    return found


def draws_of(examples: Examples, scores: NDArray[np.floating], seed: int) -> NDArray[np.float64]:
    return auc_draws(examples.labels, scores, examples.prompts, weights=examples.weights, seed=seed)


def gain_of(
    examples: Examples, scores: NDArray[np.floating], base: NDArray[np.floating], seed: int
) -> tuple[float, float, float]:
    """Return the ROC-AUC by ``scores`` less that by ``base``, with its interval by prompts."""
    apart = draws_of(examples, scores, seed) - draws_of(examples, base, seed)
    return auc_of(examples, scores) - auc_of(examples, base), *interval(apart)


def better(
    examples: Examples, scores: Mapping[str, NDArray[np.floating]], *, seed: int
) -> tuple[str, dict[str, float]]:
    """Return the choice with the highest ROC-AUC, the first among equals, and metrics of all.

    Of two choices, ``auc_gain`` is the better one's area less that of the other, with its interval by prompts.
    """
    areas = {name: auc_of(examples, each) for name, each in scores.items()}
    best = max(areas, key=areas.__getitem__)
    if len(areas) < 2:
        return best, {}
    other = next(name for name in areas if name != best)
    gain = gain_of(examples, scores[best], scores[other], seed)
    named = dict(zip(("auc_gain", "auc_gain_low", "auc_gain_high"), gain, strict=True))
    return best, {f"auc_{name}": value for name, value in areas.items()} | named
