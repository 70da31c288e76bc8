"""How well means, differences and ratios are known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..errors import LossyValueError


class Interval(NamedTuple):
    """An estimate, and the ends of its 95 % interval.

    Examples
    --------
    >>> str(Interval(1.1, 1.02, 1.2)), f"{Interval(-0.5, -2, 1):+.1f}", str(Interval(1, 1, 1))
    ('1.10 (1.02 to 1.20)', '-0.5 (-2.0 to +1.0)', '1.00')
    """

    value: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        value, low, high = (format(x, form or ".2f") for x in self)
        return value if self.low == self.high else f"{value} ({low} to {high})"

    def __str__(self) -> str:
        return format(self, "")


def first_over_last(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., -1]


def jackknife(rows: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the variance of a function of sums over rows, by leaving each out; 0 for a single one, which shows none.

    The variance is ``(n - 1) / n · Σ (θᵢ - mean θ)²``, where θᵢ is the function without row i.
    """
    return (len(rows) - 1) * float(np.var(of(rows.sum(0) - rows))) if len(rows) > 1 else 0.0


@functools.cache
def t_quantile(freedom: float) -> float:
    """Return the t with P(\\|T\\| ≤ t) = 0.95: the density of arctan(T / √freedom) is a power of the cosine.

    A base install, which runs the demo, has no scipy.
    """
    angles = np.linspace(0, np.pi / 2, 200_001)
    middles = (angles[1:] + angles[:-1]) / 2
    shares = np.append(0.0, (np.cos(middles) ** (freedom - 1)).cumsum())
    return float(freedom**0.5 * np.tan(np.interp(0.95, shares / shares[-1], angles)))


def interval(rows: ArrayLike, of: Callable[[np.ndarray], Any] = first_over_last, log: bool = False) -> Interval:
    """Return a smooth function of the sums of ``rows`` over n problems, and its 95 % interval.

    The interval is Student's t with n - 1 degrees of freedom and the :func:`jackknife`'s standard error: with six or
    twelve problems a bootstrap's is too short. For a mean it is the t-test's.

    Parameters
    ----------
    rows
        One row a problem, ``(n, k)``; a list of values ``(n,)`` stands for their mean.
    of
        Maps sums ``(…, k)`` to ``(…)``; by default the first over the last one.
    log
        Whether the logarithm of the quantity, which is positive, has the symmetric interval.

    Examples
    --------
    >>> f"{interval([1.0, 2.0, 3.0]):.3f}"
    '2.000 (-0.484 to 4.484)'
    >>> f"{interval([(10, 4), (30, 11)], log=True):.3f}"
    '2.667 (1.534 to 4.635)'
    """
    rows = np.asarray(rows, dtype=float)
    rows = np.stack([rows, np.ones(len(rows))], 1) if rows.ndim == 1 else rows
    f = (lambda sums: np.log(of(sums))) if log else of
    estimate, half = float(f(rows.sum(0))), 0.0
    if variance := jackknife(rows, f):
        half = t_quantile(len(rows) - 1) * variance**0.5
    ends = estimate, estimate - half, estimate + half
    return Interval(*(np.exp(ends).tolist() if log else ends))


def paired_interval(scores: Sequence[float], reference: Sequence[float]) -> Interval:
    """Return the mean difference of two lists of scores in [0, 1] on the same problems, and its 95 % interval.

    This is the paired t-test's interval. Where all answers are right, wrong or a tie of both, or all differ alike, as
    one alone does, it has two more differences, +1 and -1: the adjusted interval of Bonett and Price (2012). They stand
    for losses that are too rare to be seen on n problems: without any difference, the interval is about ± 2.8 / n.

    Examples
    --------
    >>> f"{paired_interval([1, 1, 0, 1], [1, 0, 0, 1]):.3f}"
    '0.250 (-0.623 to 0.957)'
    >>> f"{paired_interval([1.0] * 1000, [1.0] * 1000):.3f}"
    '0.000 (-0.003 to 0.003)'
    """
    both = (*scores, *reference)
    if outside := [score for score in both if not 0 <= score <= 1]:
        raise LossyValueError(f"a score has to be a number from 0 to 1, but one is {outside[0]!r}")
    apart = [a - b for a, b in zip(scores, reference, strict=True)]
    _, low, high = interval([1.0, -1.0, *apart] if {*both} <= {0, 0.5, 1} or len({*apart}) == 1 else apart)
    return Interval((sum(scores) - sum(reference)) / len(scores), max(-1.0, low), min(1.0, high))


def smallest_loss(n: int) -> float | None:
    """Return the smallest loss that n right or wrong answers can show by :func:`paired_interval`; None if they can't.

    Examples
    --------
    >>> smallest_loss(100), smallest_loss(4)
    (0.06, None)
    """
    lost = (k for k in range(1, n + 1) if paired_interval([0.0] * k + [1.0] * (n - k), [1.0] * n).high < 0)
    return next((k / n for k in lost), None)


def times_as_fast(own: ArrayLike, other: ArrayLike) -> Interval:
    """Return the ratio of tokens per second, own over other, as :func:`interval` over answers.

    Both are ``(n, 2)``: tokens and seconds of the answers to the same prompts.

    Examples
    --------
    >>> str(times_as_fast([(10, 1.0), (30, 3.0)], [(20, 4.0), (20, 4.0)]))
    '2.00'
    """
    rows = np.concatenate([own, other], 1, dtype=float)
    return interval(rows, lambda sums: sums[..., 0] * sums[..., 3] / (sums[..., 1] * sums[..., 2]), log=True)
