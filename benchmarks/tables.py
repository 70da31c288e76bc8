"""The kept rows, intervals over problems, and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import t

ROOT = Path(__file__).parents[1]
DATA = ROOT / "hub_cards" / "lossy-assist-results"
Interval = tuple[float, float, float]
"""An estimate, and the ends of its interval."""
Row = Mapping[str, Any]


@cache
def rows(configuration: str) -> tuple[Row, ...]:
    """Return the rows of a configuration of the data set."""
    return tuple(pq.read_table(DATA / "data" / f"{configuration}.parquet").to_pylist())


def interval(values: np.ndarray, of: Callable[[np.ndarray], np.ndarray], log: bool = False) -> Interval:
    """Return a smooth function of the sums of ``values`` ``(n, k)`` over problems, and the ends of its interval.

    The interval is Student's t with the jackknife's error. A positive quantity has it around its logarithm.

    Examples
    --------
    >>> [round(float(x), 3) for x in interval(np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]), ratio)]
    [2.0, -0.484, 4.484]
    """
    f = (lambda sums: np.log(of(sums))) if log else of
    n, total = len(values), values.sum(0)
    estimate = float(f(total[None])[0])
    error = math.sqrt((n - 1) * np.var(f(total - values))) if n > 1 else 0.0
    ends = estimate + error * np.array([0.0, *t.ppf([0.025, 0.975], max(1, n - 1))])
    return tuple(float(x) for x in (np.exp(ends) if log else ends))


def ratio(sums: np.ndarray) -> np.ndarray:
    return sums[:, 0] / sums[:, 1]


def paired(own: Sequence[float], reference: Sequence[float]) -> Interval:
    """Return the mean difference of scores, with the paired t-test's interval.

    Answers that are right or wrong have the adjusted interval of Bonett and Price (2012).

    Examples
    --------
    >>> [round(x, 2) for x in paired([1, 1, 0, 1], [1, 0, 0, 1])]
    [0.25, -0.62, 0.96]
    >>> [round(x, 3) for x in paired([0.9, 0.8, 0.7], [0.8, 0.75, 0.7])]
    [0.05, -0.074, 0.174]
    """
    apart = [a - b for a, b in zip(own, reference, strict=True)]
    unseen = (1.0, -1.0) if {*own, *reference} <= {0, 0.5, 1} else ()
    _, low, high = interval(np.array([(x, 1.0) for x in (*unseen, *apart)]), ratio)
    return fmean(apart), max(-1.0, low), min(1.0, high)


def points(own: Sequence[float], reference: Sequence[float]) -> Interval:
    return tuple(100 * x for x in paired(own, reference))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values that allow for all comparisons made, by Holm's method.

    Examples
    --------
    >>> holm([0.03, 0.01, 0.5])
    [0.06, 0.03, 0.5]
    """
    order = np.argsort(ps)
    steps = np.maximum.accumulate([(len(ps) - i) * ps[one] for i, one in enumerate(order)])
    return np.minimum(1.0, steps[np.argsort(order)]).tolist()


def signed(value: Interval, digits: int = 1) -> str:
    return "{:+.{d}f} ({:+.{d}f} … {:+.{d}f})".format(*value, d=digits)


def times(value: Interval | None, digits: int = 2) -> str:
    return "" if value is None else "{:.{d}f} ({:.{d}f} … {:.{d}f})".format(*value, d=digits)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(map(str, cells))} |".replace("| --- ", "|---").replace("--- |", "---|")
                     for cells in (heads, ["---"] * len(heads), *lines))  # fmt: skip


def p_of(value: Interval, n: int) -> float:
    """Return the two-sided p that a ratio of ``n`` problems, with its interval, is 1."""
    estimate, low, high = map(math.log, value)
    return 2 * float(t.sf(abs(estimate) / ((high - low) / (2 * t.ppf(0.975, n - 1))), n - 1))
