"""Figures out of fold: each prompt is judged by a fit that has not seen it; thresholds, areas and their intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import GroupShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter

from ..errors import LossyValueError
from ..heads import Head
from ..heads.repository import ROC
from .examples import Examples

FOLDS = 5

RECALLS = (1.0, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The recalls in the table of a head: of important tokens, or of acceptable ones."""

_DRAWS = 200


def both_classes(labels: NDArray[np.bool_]) -> bool:
    return bool(labels.any() and not labels.all())


def validation_mask(labels: NDArray[np.bool_], prompts: NDArray[np.int64], *, seed: int = 0) -> NDArray[np.bool_]:
    """Draw a fifth of the prompts for validation, and return which tokens ``(N,)`` are theirs.

    All tokens of a prompt go to one side. Draws repeat until both sides have both classes.
    """
    draws = GroupShuffleSplit(n_splits=_DRAWS, test_size=0.2, random_state=seed)
    for train, validation in draws.split(labels, groups=prompts):
        if both_classes(labels[train]) and both_classes(labels[validation]):
            mask = np.zeros(len(labels), dtype=bool)
            mask[validation] = True
            return mask
    raise _one_sided(labels, prompts, "in the training and in the validation prompts")


def deal(examples: Examples, *, seed: int = 0) -> NDArray[np.int64]:
    """Deal prompts into folds at random, and return the fold of each token ``(N,)``.

    Deals repeat until both classes are outside each fold.
    """
    known, owner = np.unique(examples.prompts, return_inverse=True)
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        dealt = (rng.permutation(len(known)) % min(FOLDS, len(known)))[owner]
        if all(both_classes(examples.labels[dealt != fold]) for fold in np.unique(dealt)):
            return dealt
    raise _one_sided(examples.labels, examples.prompts, "outside every fold of the prompts")


def _one_sided(labels: NDArray[np.bool_], prompts: NDArray[np.int64], where: str) -> LossyValueError:
    positive, negative = (len(np.unique(prompts[labels == label])) for label in (True, False))
    return LossyValueError(
        f"`data` has to have tokens of both classes {where}, but of {len(np.unique(prompts))} prompts {positive} have "
        f"tokens of one class and {negative} of the other; mine more prompts"
    )


def largest_threshold(examples: Examples, scores: NDArray[np.floating], recall: float) -> float:
    """Return the largest τ such that a share ``recall`` of the True tokens has a probability of at least τ."""
    own, weights = scores[examples.labels], examples.weights[examples.labels]
    order = np.argsort(-own, kind="stable")
    found = weights[order].cumsum()
    # 0.7 of 10 tokens are 7, not 8, although 0.7 * 10 comes out a little above 7.
    return float(own[order][np.searchsorted(found, recall * found[-1] * (1 - 1e-9))])


def recall_and_skipped(examples: Examples, scores: NDArray[np.floating], threshold: float) -> tuple[float, float]:
    """Return the share of the important tokens that a judge finds, and that of all tokens that it lets pass."""
    labels, weights = examples.labels, examples.weights
    recall = np.average(scores[labels] >= threshold, weights=weights[labels])
    return float(recall), float(np.average(scores < threshold, weights=weights))


def rates(examples: Examples, scores: NDArray[np.floating], threshold: float) -> tuple[float, float]:
    """Return TPR and FPR: the shares of True and of False tokens with a probability above ``threshold``."""
    above = scores > threshold
    return float(above[examples.labels].mean()), float(above[~examples.labels].mean())


def auc_draws(
    examples: Examples, scores: NDArray[np.floating], *, draws: int = 500, seed: int = 0
) -> NDArray[np.float64]:
    """Return the ROC-AUC of bootstrap samples of the prompts, since tokens of one prompt are dependent.

    Samples with a single class are left out. Equal seeds draw equal samples, so two heads are compared draw by draw.
    """
    rng = np.random.default_rng(seed)
    _, owner = np.unique(examples.prompts, return_inverse=True)
    _, level = np.unique(scores, return_inverse=True)
    count = owner.max() + 1
    areas = []
    for _ in range(draws):
        times = np.bincount(rng.integers(count, size=count), minlength=count)[owner] * examples.weights
        # Weighted pairs of a True and a False token that are in the right order; ties count half.
        positive = np.bincount(level, weights=times * examples.labels)
        negative = np.bincount(level, weights=times * ~examples.labels)
        if pairs := positive.sum() * negative.sum():
            areas.append(positive @ (negative.cumsum() - negative / 2) / pairs)
    return np.array(areas)


def interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the quantiles between which 95 % of the draws lie; 0 and 1 if there are none."""
    low, high = np.quantile(draws, (0.025, 0.975)) if len(draws) else (0.0, 1.0)
    return float(low), float(high)


def auc_of(examples: Examples, scores: NDArray[np.floating]) -> float:
    """Return the ROC-AUC on examples, which count by their weights."""
    return float(roc_auc_score(examples.labels, scores, sample_weight=examples.weights))


def area_of(examples: Examples, scores: NDArray[np.floating], *, seed: int, name: str = "auc") -> dict[str, float]:
    """Return the ROC-AUC on examples and its interval, as metrics."""
    low, high = interval(auc_draws(examples, scores, seed=seed))
    return {name: auc_of(examples, scores), f"{name}_low": low, f"{name}_high": high}


def gain_of(
    examples: Examples, scores: NDArray[np.floating], base: NDArray[np.floating], seed: int
) -> tuple[float, float, float]:
    """Return the ROC-AUC by ``scores`` less that by ``base``, with its interval by prompts."""
    apart = auc_draws(examples, scores, seed=seed) - auc_draws(examples, base, seed=seed)
    return auc_of(examples, scores) - auc_of(examples, base), *interval(apart)


@dataclass(frozen=True, eq=False)
class Crossed:
    """One kind of classifier, each prompt judged by a fit that has not seen it.

    ``probabilities`` ``(N,)`` are those of the True class. ``by_fold`` has the fit that left each fold out, ``chosen``
    the best of the classifiers over all folds.
    """

    probabilities: NDArray[np.floating]
    by_fold: Mapping[int, Pipeline]
    chosen: Any


def fit(classifier: Any, columns: Sequence[str], examples: Examples) -> Pipeline:
    """Fit a standardisation and a classifier, which get weights and prompts if they take them."""
    pipeline = make_pipeline(StandardScaler(), clone(classifier))
    given = {"sample_weight": examples.weights / examples.weights.mean(), "groups": examples.prompts}
    with warnings.catch_warnings():
        # A fit that reaches the paper's limit of iterations is validated like any other.
        warnings.simplefilter("ignore", ConvergenceWarning)
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
    scores, fits = np.empty((len(classifiers), len(examples))), {}
    for fold in np.unique(folds):
        inside = folds == fold
        others, left_out = examples.where(~inside), examples.where(inside).features(columns)
        for i, classifier in enumerate(classifiers):
            fits[i, int(fold)] = fit(classifier, columns, others)
            scores[i, inside] = fits[i, int(fold)].predict_proba(left_out)[:, 1]
            on_fit()

    def best(mask: NDArray[np.bool_]) -> int:
        among = examples.only(()).where(mask)
        return int(np.argmax([auc_of(among, row[mask]) for row in scores]))

    probabilities, by_fold = np.empty(len(examples)), {}
    for fold in np.unique(folds):
        chosen = best(folds != fold)
        probabilities[folds == fold] = scores[chosen, folds == fold]
        by_fold[int(fold)] = fits[chosen, int(fold)]
    return Crossed(probabilities, by_fold, classifiers[best(np.ones(len(folds), dtype=bool))])


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


@dataclass(frozen=True, eq=False)
class Curve:
    """The ROC curve of scores, with its name in the legend and matplotlib's style and colour."""

    name: str
    examples: Examples
    scores: NDArray[np.floating]
    style: str = "-"
    color: str = "C0"


def save_with_roc(head: Head, folder: Path, curves: Sequence[Curve], *, positive: str, others: str) -> None:
    """Write a head, its model card and its ROC curves into ``folder``.

    ``positive`` and ``others`` complete the axes' labels, e.g. ``"important tokens found"``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Without pyplot, which would choose a window system and keep every figure alive.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    for curve in curves:
        examples, scores = curve.examples, curve.scores
        false_rates, true_rates, _ = roc_curve(examples.labels, scores, sample_weight=examples.weights)
        name = f"{curve.name} (AUC {auc_of(examples, scores):.3f})"
        axes.plot(false_rates, true_rates, curve.style, color=curve.color, label=name)
    title = f"{head.config.kind.capitalize()} head for {head.config.task}"
    axes.set(title=title, xlabel=f"share of {others}", ylabel=f"share of {positive}", aspect="equal")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(folder / ROC, dpi=120)
    head.save_pretrained(folder)  # the card shows the plot if it is there
