"""The interval of a mean by Student's t distribution, without scipy, which a base install does not bring."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import fmean, stdev


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of at least two values, and the ends of its 95 % interval: the t-test's.

    Examples
    --------
    >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    mean, half = fmean(values), t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


@functools.cache
def t_quantile(freedom: int, confidence: float = 0.95) -> float:
    """Return the t with P(\\|T\\| ≤ t) = ``confidence`` for ``freedom`` degrees of freedom.

    Examples
    --------
    >>> round(t_quantile(1), 4), round(t_quantile(30), 4)
    (12.7062, 2.0423)
    """
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (angle, high) if _within(angle, freedom) < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return P(\\|T\\| ≤ √freedom · tan(angle)): the finite sums 26.7.3 and 26.7.4 of Abramowitz and Stegun."""
    odd, total, squared = freedom % 2, 0.0, math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    for factor in range(2 + odd, freedom + 1, 2):
        total += term
        term *= squared * (factor - 1) / factor
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
