"""Folding of a standardised linear classifier into one weight and one bias."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import LossyValueError


def fold(mean: ArrayLike, scale: ArrayLike, coef: ArrayLike, intercept: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return ``w = coef / scale`` ``(d,)`` and ``b = intercept - w · mean`` ``()`` in float32, computed in float64.

    ``w · h + b`` equals the classifier's ``coef · (h - mean) / scale + intercept``. Arguments are in scikit-learn's
    shapes: ``mean`` and ``scale`` ``(d,)``, ``coef`` ``(d,)`` or ``(1, d)``, ``intercept`` ``()`` or ``(1,)``.
    """
    center, spread, slope, offset = (
        torch.from_numpy(np.array(x, dtype=np.float64)).flatten() for x in (mean, scale, coef, intercept)
    )
    if not center.shape == spread.shape == slope.shape or offset.numel() != 1:
        raise LossyValueError(
            "`mean`, `scale` and `coef` have to be of one length and `intercept` one number, but they have "
            f"{center.numel()}, {spread.numel()}, {slope.numel()} and {offset.numel()} values"
        )
    if (spread == 0).any():
        raise LossyValueError("`scale` has to be nonzero; give constant features a scale of 1")
    weight = slope / spread
    return weight.float(), (offset - weight @ center).squeeze().float()
