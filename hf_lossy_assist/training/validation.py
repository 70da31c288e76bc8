"""Fits, and figures out of fold: each prompt is judged by a fit that has not seen it; thresholds, areas, intervals."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from ..errors import LossyValueError
from ..heads import Head
from ..heads.repository import ROC
from ..progress import track
from .examples import Examples

FOLDS = 5

RECALLS = (1.0, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The recalls in the table of a head: of important tokens, or of acceptable ones."""

STRENGTHS = tuple(10.0**-k for k in range(7, -1, -1))
"""The grid of scikit-learn's ``C``, from the strongest regularisation to the weakest."""

MAX_ITER = 500  # from appendix B of the AutoJudge paper; all else is scikit-learn's default


def both_classes(labels: NDArray[np.bool_]) -> bool:
    return bool(labels.any() and not labels.all())


Split = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The indices of the tokens to fit to, and of those to judge."""


def folds_of(examples: Examples, *, seed: int = 0) -> list[Split]:
    """Deal prompts into folds with about equal shares of both classes; a prompt's tokens stay together."""
    labels, prompts = examples.labels, examples.prompts
    cut = StratifiedGroupKFold(min(FOLDS, len(np.unique(prompts))), shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class of few tokens is refused below, if it has to be
        folds = list(cut.split(labels, labels, prompts)) if labels.any() and not labels.all() else []
    if not folds or not all(both_classes(labels[others]) for others, _ in folds):
        positive, negative = (len(np.unique(prompts[labels == label])) for label in (True, False))
        raise LossyValueError(
            f"`data` has to have tokens of both classes outside every fold of the prompts, but of "
            f"{len(np.unique(prompts))} prompts {positive} have tokens of one class and {negative} of the other; mine "
            "more prompts"
        )
    return folds


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

    Samples with a single class are left out.
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


def auc_of(examples: Examples, scores: NDArray[np.floating]) -> float:
    """Return the ROC-AUC on examples, which count by their weights."""
    return float(roc_auc_score(examples.labels, scores, sample_weight=examples.weights))


def quantiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends between which 95 % of the draws lie; 0 and 1 if there are none."""
    low, high = np.quantile(draws, (0.025, 0.975)) if len(draws) else (0.0, 1.0)
    return float(low), float(high)


def area_of(examples: Examples, scores: NDArray[np.floating], *, seed: int, name: str = "auc") -> dict[str, float]:
    """Return the ROC-AUC on examples and its interval, as metrics."""
    low, high = quantiles(auc_draws(examples, scores, seed=seed))
    return {name: auc_of(examples, scores), f"{name}_low": low, f"{name}_high": high}


@dataclass(frozen=True, eq=False)
class Crossed:
    """Logistic regressions of one strength, by which each prompt is judged out of fold.

    ``probabilities`` ``(N,)`` are those of the True class by fits that have not seen a token's fold.
    """

    columns: Sequence[str]
    strength: float
    probabilities: NDArray[np.floating]

    def final(self, examples: Examples) -> Pipeline:
        """Return the fit to all examples."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return pipeline_of(self.strength).fit(
                examples.features(self.columns), examples.labels, **_weights(examples)
            )


def pipeline_of(strength: float) -> Pipeline:
    """Return a standardisation and a logistic regression with L2 regularisation, of scikit-learn's ``C``."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MAX_ITER))


def _weights(examples: Examples) -> dict[str, NDArray[np.floating]]:
    share = examples.weights / examples.weights.mean()
    return {f"{step}__sample_weight": share for step in ("standardscaler", "logisticregression")}


def cross(
    strengths: Sequence[float],
    columns: Sequence[str],
    examples: Examples,
    folds: Sequence[Split],
) -> Crossed:
    """Judge each fold by fits to the others, with the strength whose ROC-AUC out of fold is the highest.

    So the strength is chosen by the same figures that are reported, which makes them a little too good.
    """
    features = examples.features(columns)
    with warnings.catch_warnings():
        # A fit that reaches the paper's limit of iterations is validated like any other.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = (
            cross_val_predict(
                pipeline_of(strength), features, examples.labels, cv=folds, method="predict_proba",
                params=_weights(examples),
            )[:, 1].astype(np.float64)
            for strength in strengths
        )  # fmt: skip
        found = dict(zip(strengths, track(fits, total=len(strengths), what="fits"), strict=True))
    best = max(found, key=lambda strength: auc_of(examples, found[strength]))
    return Crossed(columns, best, found[best])


def best_state(
    choices: Mapping[str, Sequence[str]],
    strengths: Sequence[float],
    examples: Examples,
    *,
    seed: int,
) -> tuple[str, Crossed, dict[str, float]]:
    """Cross each choice of columns, and return the name of the best, its figures and metrics of all."""
    folds = folds_of(examples, seed=seed)
    found = {name: cross(strengths, columns, examples, folds) for name, columns in choices.items()}
    areas = {name: auc_of(examples, each.probabilities) for name, each in found.items()}
    at = max(areas, key=areas.__getitem__)
    by_state = {f"auc_{name}": area for name, area in areas.items()} if len(areas) > 1 else {}
    return at, found[at], {**by_state, "C": found[at].strength, "folds": len(folds)}


@dataclass(frozen=True, eq=False)
class Curve:
    """The ROC curve of scores, with its name in the legend and matplotlib's style."""

    name: str
    examples: Examples
    scores: NDArray[np.floating]
    style: str = "-"


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
        axes.plot(false_rates, true_rates, curve.style, color="C0", label=name)
    title = f"{head.config.kind.capitalize()} head for {head.config.task}"
    axes.set(title=title, xlabel=f"share of {others}", ylabel=f"share of {positive}", aspect="equal")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(folder / ROC, dpi=120)
    head.save_pretrained(folder)  # the card shows the plot if it is there
