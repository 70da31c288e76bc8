"""Folding of a standardised linear classifier into one weight and one bias."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import LossyValueError


def fold(mean: ArrayLike, scale: ArrayLike, coef: ArrayLike, intercept: ArrayLike) -> tuple[Tensor, Tensor]:
    """Absorb a standardisation into a classifier: ``w = coef / scale``, ``b = intercept - coef · mean / scale``.

    So ``w · h + b = coef · (h - mean) / scale + intercept``, one dot product per token where scikit-learn takes a pass
    over the features first.

    Parameters
    ----------
    mean, scale
        ``(d,)`` what was subtracted from the features and what they were divided by.
    coef, intercept
        ``(d,)`` or ``(1, d)``, and ``()`` or ``(1,)``, as scikit-learn stores them.

    Returns
    -------
    weight, bias
        ``(d,)`` and ``()`` in float32, computed in float64.

    Examples
    --------
    >>> fold(mean=[1.0, 2.0], scale=[2.0, 4.0], coef=[[1.0, -1.0]], intercept=[0.5])
    (tensor([ 0.5000, -0.2500]), tensor(0.5000))
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
        raise LossyValueError("`scale` has to be without zeros; give features that never vary a scale of 1")
    weight = slope / spread
    return weight.float(), (offset - weight @ center).squeeze().float()
