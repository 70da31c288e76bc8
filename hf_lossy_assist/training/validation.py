"""Validation of heads: the choice of prompts, the effects of thresholds, and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupShuffleSplit

from ..errors import LossyValueError
from .examples import Examples

_DRAWS = 200


def validation_mask(
    labels: NDArray[np.bool_], prompts: NDArray[np.int64], *, share: float = 0.1, seed: int = 0
) -> NDArray[np.bool_]:
    """Draw a share of the prompts for validation, and return which tokens ``(N,)`` are theirs.

    Garipov et al. 2025 (AutoJudge), appendix B: all tokens of a prompt go to one side. Draws repeat until both sides
    have both classes.
    """
    draws = GroupShuffleSplit(n_splits=_DRAWS, test_size=share, random_state=seed)
    for train, validation in draws.split(labels, groups=prompts):
        if both_classes(labels[train]) and both_classes(labels[validation]):
            mask = np.zeros(len(labels), dtype=bool)
            mask[validation] = True
            return mask
    raise LossyValueError(_one_sided(labels, prompts, "in the training and in the validation prompts"))


def _one_sided(labels: NDArray[np.bool_], prompts: NDArray[np.int64], where: str) -> str:
    positive, negative = (len(np.unique(prompts[labels == label])) for label in (True, False))
    return (
        f"`data` has to have tokens of both classes {where}, but of {len(np.unique(prompts))} prompts {positive} have "
        f"tokens of one class and {negative} of the other; mine more prompts"
    )


FOLDS = 5


def deal(
    labels: NDArray[np.bool_], prompts: NDArray[np.int64], *, folds: int = FOLDS, seed: int = 0
) -> NDArray[np.int64]:
    """Deal prompts into folds at random, and return the fold of each token ``(N,)``.

    Deals repeat until both classes are outside each fold.
    """
    known, owner = np.unique(prompts, return_inverse=True)
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        dealt = (rng.permutation(len(known)) % min(folds, len(known)))[owner]
        if all(both_classes(labels[dealt != fold]) for fold in np.unique(dealt)):
            return dealt
    raise LossyValueError(_one_sided(labels, prompts, "outside every fold of the prompts"))


def both_classes(labels: NDArray[np.bool_]) -> bool:
    return bool(labels.any() and not labels.all())


RECALLS = (1.0, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The recalls in the table of a head: of important tokens, or of acceptable ones."""


def largest_threshold(
    labels: NDArray[np.bool_],
    probabilities: NDArray[np.floating],
    recall: float,
    weights: NDArray[np.floating] | None = None,
) -> float:
    """Return the largest τ such that a share ``recall`` of the True tokens has a probability of at least τ."""
    weights = np.ones(len(labels)) if weights is None else weights
    order = np.argsort(-probabilities[labels], kind="stable")
    found = weights[labels][order].cumsum()
    # 0.7 of 10 tokens are 7, not 8, although 0.7 * 10 comes out a little above 7.
    return float(probabilities[labels][order][np.searchsorted(found, recall * found[-1] * (1 - 1e-9))])


def recall_rows(
    labels: NDArray[np.bool_],
    probabilities: NDArray[np.floating],
    recalls: Sequence[float] = RECALLS,
    weights: NDArray[np.floating] | None = None,
) -> list[tuple[float, float, float]]:
    """Return rows (threshold, recall of important tokens, share of all tokens skipped), by ascending threshold.

    A token is skipped, that is accepted as unimportant, iff its probability is below the threshold.
    """
    weights = np.ones(len(labels)) if weights is None else weights
    thresholds = sorted({largest_threshold(labels, probabilities, recall, weights) for recall in recalls})

    def share(chosen: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
        return float(np.average(chosen[among], weights=weights[among]))

    everywhere = np.ones_like(labels)
    return [(t, share(probabilities >= t, labels), share(probabilities < t, everywhere)) for t in thresholds]


def rates(labels: NDArray[np.bool_], probabilities: NDArray[np.floating], threshold: float) -> tuple[float, float]:
    """Return TPR and FPR: the shares of True and of False tokens with a probability above ``threshold``."""
    above = probabilities > threshold
    return float(above[labels].mean()), float(above[~labels].mean())


def auc_draws(
    labels: NDArray[np.bool_],
    probabilities: NDArray[np.floating],
    prompts: NDArray[np.int64],
    *,
    weights: NDArray[np.floating] | None = None,
    draws: int = 500,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Return the ROC-AUC of bootstrap samples of the prompts, since tokens of one prompt are dependent.

    Samples with a single class are left out. Equal seeds draw equal samples, so two heads are compared draw by draw.
    """
    rng = np.random.default_rng(seed)
    _, owner = np.unique(prompts, return_inverse=True)
    _, level = np.unique(probabilities, return_inverse=True)
    count = owner.max() + 1
    areas = []
    for _ in range(draws):
        times = np.bincount(rng.integers(count, size=count), minlength=count)[owner]
        times = times if weights is None else times * weights
        # Weighted pairs of a True and a False token that are in the right order; ties count half.
        positive = np.bincount(level, weights=times * labels)
        negative = np.bincount(level, weights=times * ~labels)
        if pairs := positive.sum() * negative.sum():
            areas.append(positive @ (negative.cumsum() - negative / 2) / pairs)
    return np.array(areas)


def interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the quantiles between which 95 % of the draws lie."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def auc_interval(
    labels: NDArray[np.bool_],
    probabilities: NDArray[np.floating],
    prompts: NDArray[np.int64],
    **options: Any,
) -> tuple[float, float]:
    """Return a bootstrap interval of the ROC-AUC; ``options`` are those of :func:`auc_draws`."""
    areas = auc_draws(labels, probabilities, prompts, **options)
    # Where all tokens of a class are in one prompt, it may be that no draw has both classes.
    return interval(areas) if len(areas) else (0.0, 1.0)


def auc_of(examples: Examples, probabilities: NDArray[np.floating]) -> float:
    """Return the ROC-AUC on examples, which count by their weights."""
    return float(roc_auc_score(examples.labels, probabilities, sample_weight=examples.weights))


def area_of(
    examples: Examples, probabilities: NDArray[np.floating], *, seed: int, name: str = "auc"
) -> dict[str, float]:
    """Return the ROC-AUC on examples and its interval, as metrics."""
    low, high = auc_interval(examples.labels, probabilities, examples.prompts, weights=examples.weights, seed=seed)
    return {name: auc_of(examples, probabilities), f"{name}_low": low, f"{name}_high": high}
