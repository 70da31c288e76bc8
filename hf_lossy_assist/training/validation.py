"""Validation of heads: the choice of prompts, the effects of thresholds, and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupShuffleSplit

from ..errors import LossyValueError
from ..values import Rule
from .examples import Examples

Share = Annotated[float, Rule("between 0 and 1", lambda x: 0 < x < 1)]

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
    positive, negative = (len(np.unique(prompts[labels == label])) for label in (True, False))
    raise LossyValueError(
        "`data` has to have tokens of both classes in the training and in the validation prompts, but of "
        f"{len(np.unique(prompts))} prompts {positive} have tokens of one class and {negative} of the other; "
        "mine more prompts"
    )


def both_classes(labels: NDArray[np.bool_]) -> bool:
    return bool(labels.any() and not labels.all())


RECALLS = (1.0, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The recalls of important tokens in a judge head's table."""

VERIFIER_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
"""The thresholds of a verifier head's table."""


def largest_threshold(labels: NDArray[np.bool_], probabilities: NDArray[np.floating], recall: float) -> float:
    """Return the largest τ such that a share ``recall`` of the True tokens has a probability of at least τ."""
    important = np.sort(probabilities[labels])[::-1]
    # 0.7 of 10 tokens are 7, not 8, although 0.7 * 10 comes out a little above 7.
    needed = max(1, math.ceil(recall * len(important) - 1e-9))
    return float(important[needed - 1])


def recall_rows(
    labels: NDArray[np.bool_], probabilities: NDArray[np.floating], recalls: Sequence[float] = RECALLS
) -> list[tuple[float, float, float]]:
    """Return rows (threshold, recall of important tokens, share of all tokens skipped), by ascending threshold.

    A token is skipped, that is accepted as unimportant, iff its probability is below the threshold.
    """
    thresholds = sorted({largest_threshold(labels, probabilities, recall) for recall in recalls})
    return [
        (threshold, float((probabilities[labels] >= threshold).mean()), float((probabilities < threshold).mean()))
        for threshold in thresholds
    ]


def rates(labels: NDArray[np.bool_], probabilities: NDArray[np.floating], threshold: float) -> tuple[float, float]:
    """Return TPR and FPR: the shares of True and of False tokens with a probability above ``threshold``."""
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
    """Return a bootstrap interval of the ROC-AUC.

    Each draw resamples prompts with replacement, since tokens of one prompt are dependent. Draws with a single class
    don't count.
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
    if not areas:  # all tokens of a class are in one prompt, and no draw had both classes
        return 0.0, 1.0
    low, high = np.quantile(areas, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def metrics_of(
    examples: Examples, validation: Examples, probabilities: NDArray[np.floating], *, seed: int, **more: float
) -> dict[str, float]:
    """Return a head's figures on the validation side: area and interval, ``more``, and the sizes of data and side."""
    low, high = auc_interval(validation.labels, probabilities, validation.prompts, seed=seed)
    area = float(roc_auc_score(validation.labels, probabilities))
    return {
        **{"auc": area, "auc_low": low, "auc_high": high},
        **more,
        **examples.counts(),
        **{f"validation_{name}": value for name, value in validation.counts().items()},
    }
