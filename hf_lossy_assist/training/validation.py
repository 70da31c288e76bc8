"""Validation of heads: prompts to validate on, what thresholds do, and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupShuffleSplit

from ..errors import LossyValueError

_DRAWS = 200


def validation_mask(
    labels: NDArray[np.bool_], prompts: NDArray[np.int64], *, share: float = 0.1, seed: int = 0
) -> NDArray[np.bool_]:
    """Choose a share of the prompts for validation at random, and return which tokens ``(N,)`` are theirs.

    Garipov et al. 2025 (AutoJudge), appendix B: all tokens of a prompt go to one side. A draw that leaves a side with
    one class only is thrown away.

    Examples
    --------
    >>> import numpy as np
    >>> prompts = np.repeat(np.arange(20), 3)
    >>> mask = validation_mask(np.arange(60) % 3 == 0, prompts)
    >>> len(np.unique(prompts[mask])), len(set(prompts[mask]) & set(prompts[~mask]))
    (2, 0)
    """
    draws = GroupShuffleSplit(n_splits=_DRAWS, test_size=share, random_state=seed)
    for train, validation in draws.split(labels, groups=prompts):
        if both_classes(labels[train]) and both_classes(labels[validation]):
            mask = np.zeros(len(labels), dtype=bool)
            mask[validation] = True
            return mask
    positive, negative = (len(np.unique(prompts[labels == label])) for label in (True, False))
    raise LossyValueError(
        "`data` has to have tokens of both classes in the training and in the validation prompts, but of "
        f"{len(np.unique(prompts))} prompts {positive} have tokens of one class and {negative} of the other; "
        "mine more prompts"
    )


def both_classes(labels: NDArray[np.bool_]) -> bool:
    """Tell whether some labels are True and some are not."""
    return bool(labels.any() and not labels.all())


RECALLS = (1.0, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The recalls of important tokens that a judge head's table is made for."""

VERIFIER_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
"""The thresholds of a verifier head's table."""


def largest_threshold(labels: NDArray[np.bool_], probabilities: NDArray[np.floating], recall: float) -> float:
    """Return the largest τ at which a share ``recall`` of the True tokens still has a probability of τ or more.

    Examples
    --------
    >>> import numpy as np
    >>> labels, probabilities = np.array([True, True, False, True]), np.array([0.9, 0.2, 0.5, 0.6])
    >>> largest_threshold(labels, probabilities, 0.6), largest_threshold(labels, probabilities, 1.0)
    (0.6, 0.2)
    """
    important = np.sort(probabilities[labels])[::-1]
    # 0.7 of 10 tokens are 7, not 8, although 0.7 * 10 comes out a little above 7.
    needed = max(1, math.ceil(recall * len(important) - 1e-9))
    return float(important[needed - 1])


def recall_rows(
    labels: NDArray[np.bool_], probabilities: NDArray[np.floating], recalls: Sequence[float] = RECALLS
) -> list[tuple[float, float, float]]:
    """Return (threshold, recall of important tokens, share of all tokens skipped) for each recall asked for.

    A token is skipped, that is accepted as unimportant, iff its probability is below the threshold. Rows go from
    careful to daring; those of equal thresholds are given once.

    Examples
    --------
    >>> import numpy as np
    >>> labels, probabilities = np.array([True, True, False, False]), np.array([0.9, 0.4, 0.1, 0.5])
    >>> recall_rows(labels, probabilities, [1.0, 0.5])
    [(0.4, 1.0, 0.25), (0.9, 0.5, 0.75)]
    """
    thresholds = sorted({largest_threshold(labels, probabilities, recall) for recall in recalls})
    return [
        (threshold, float((probabilities[labels] >= threshold).mean()), float((probabilities < threshold).mean()))
        for threshold in thresholds
    ]


def rates(labels: NDArray[np.bool_], probabilities: NDArray[np.floating], threshold: float) -> tuple[float, float]:
    """Return the shares of True and of False tokens whose probability is above ``threshold``: TPR and FPR.

    Examples
    --------
    >>> import numpy as np
    >>> rates(np.array([True, True, False]), np.array([0.9, 0.4, 0.5]), 0.5)
    (0.5, 0.0)
    """
    above = probabilities > threshold
    return float(above[labels].mean()), float(above[~labels].mean())


def auc_interval(
    labels: NDArray[np.bool_],
    probabilities: NDArray[np.floating],
    prompts: NDArray[np.int64],
    *,
    confidence: float = 0.95,
    draws: int = 500,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a bootstrap interval of the ROC-AUC over prompts, whose tokens are not independent of each other.

    Prompts are drawn with replacement; draws with one class only don't count.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.arange(60) % 3 == 0
    >>> auc_interval(labels, labels + 0.5, np.arange(60) // 6)
    (1.0, 1.0)
    """
    rng = np.random.default_rng(seed)
    _, owner = np.unique(prompts, return_inverse=True)
    _, level = np.unique(probabilities, return_inverse=True)
    count = owner.max() + 1
    areas = []
    for _ in range(draws):
        times = np.bincount(rng.integers(count, size=count), minlength=count)[owner]
        # Weighted pairs of a True and a False token that are in the right order; ties count half.
        positive = np.bincount(level, weights=times * labels)
        negative = np.bincount(level, weights=times * ~labels)
        if pairs := positive.sum() * negative.sum():
            areas.append(positive @ (negative.cumsum() - negative / 2) / pairs)
    if not areas:
        # One prompt has all tokens of a class, and was never drawn together with the others.
        return 0.0, 1.0
    low, high = np.quantile(areas, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
