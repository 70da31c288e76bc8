"""Bounds on the mean of losses in [-1, 1] that hold at every number of problems, and the choice of a setting by them.

A bettor risks a share of their wealth on each problem against "the mean loss is at least m". If that is true, the
wealth ever exceeds 1/δ times the stake with probability at most δ (Ville). A larger wealth therefore refutes m with
confidence 1 - δ (Waudby-Smith & Ramdas 2023). The stake is divided among bettors with fixed shares, so nothing has to
be tuned to the variance of the losses.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import LossyValueError

# The share of its wealth that each bettor risks on a problem.
SHARES = np.geomspace(0.001, 1.0, 16)


def bound(losses: Any, confidence: float = 0.95) -> float:
    """Return an upper bound of the mean loss, at most 1, that holds with ``confidence`` for any distribution.

    The bound holds at all numbers of losses at once, so looking and stopping early are allowed. The order of the losses
    matters a little and has to be fixed beforehand.

    Parameters
    ----------
    losses
        ``(n,)`` independent losses in [-1, 1] from one distribution, e.g. the reference's score less the setting's.
    confidence
        In (0, 1).

    Examples
    --------
    >>> round(bound([0.0] * 1000), 4)
    0.0055
    >>> round(bound([0.0, 1.0, -1.0, 0.0] * 500), 3)
    0.05
    """
    values = _losses(losses)
    _, target = _checked(0.0, confidence)
    if not len(values):
        return 1.0
    low, high = -1.0, 1.0
    for _ in range(40):  # bisection: the wealth grows with the mean
        middle = (low + high) / 2
        low, high = (low, middle) if _refuted(values, middle, target) else (middle, high)
    return high


def select(losses: Any, max_loss: float, confidence: float = 0.95) -> int | None:
    """Return the index of the last setting that is certified to lose at most ``max_loss`` on average, or None.

    Settings are tested in order, each with the whole confidence, up to the first that fails. All certified settings
    hold at once with that confidence, however their losses depend on each other (fixed sequence testing; Learn Then
    Test, Angelopoulos et al. 2021).

    Parameters
    ----------
    losses
        ``(n, m)`` losses in [-1, 1] on the same n problems. Columns go from the most cautious setting to the boldest,
        in an order decided before looking at the losses.
    max_loss
        The limit, in the unit of the losses: 0.01 is a point.
    confidence
        In (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> losses = (rng.random((5000, 3)) < [0.0, 0.005, 0.1]).astype(float)
    >>> select(losses, max_loss=0.01)
    1
    """
    columns = np.asarray(losses, dtype=float)
    if columns.ndim != 2 or not columns.size:
        raise LossyValueError(
            f"`losses` has to have the shape (problems, settings), with one or more of each, but has {columns.shape}; "
            "measure every setting's losses on the same problems first"
        )
    limit, target = _checked(max_loss, confidence)
    last = None
    for i, column in enumerate(columns.T):
        if not _refuted(_losses(column), limit, target):
            break
        last = i
    return last


def certify(
    families: Mapping[str, Sequence[Any]],
    max_loss: float,
    confidence: float = 0.95,
) -> dict[str, list[tuple[float, float]]]:
    """Certify settings of several families, all at once with ``confidence``.

    The families share the risk equally. A family whose settings are all certified passes its risk on to the next (the
    fallback procedure, Wiens & Dmitrienko 2005). Within a family, :func:`select` applies.

    Parameters
    ----------
    families
        By name, the losses ``(n,)`` of each setting, from cautious to bold. Settings may have seen different problems.
    max_loss, confidence
        As for :func:`select`.

    Returns
    -------
    dict
        By name, the bound of every certified setting and the bound's own confidence.
    """
    _checked(max_loss, confidence)
    certified: dict[str, list[tuple[float, float]]] = {}
    handed_on = 0.0
    for name, settings in families.items():
        risk = (1 - confidence) / len(families) + handed_on
        found = certified[name] = []
        for losses in settings:
            if not _refuted(_losses(losses), *_checked(max_loss, 1 - risk)):
                break
            found.append((bound(losses, 1 - risk), 1 - risk))
        handed_on = risk if len(found) == len(settings) else 0.0
    return certified


def fewest(max_loss: float, confidence: float = 0.95) -> int:
    """Return how many problems without any loss certify that at most ``max_loss`` is lost on average.

    Examples
    --------
    >>> fewest(0.05), fewest(0.01)
    (109, 553)
    """
    limit, target = _checked(max_loss, confidence)
    growth = np.log1p(SHARES * limit / (1 - limit))  # of each bettor by each problem, so that nothing is added up
    enough = target + np.log(len(SHARES))
    return bisect_left(range(sys.maxsize), True, key=lambda n: np.logaddexp.reduce(n * growth) >= enough)


def _refuted(losses: np.ndarray, mean: float, target: float) -> bool:
    """Tell whether the log of all bettors' mean wealth against ``mean`` has ever reached ``target``."""
    with np.errstate(divide="ignore"):
        growth = np.log1p(np.maximum(SHARES * (mean - losses[:, None]) / (1 - mean), -1.0))
    wealth = np.logaddexp.reduce(growth.cumsum(0), axis=-1) - np.log(len(SHARES))
    return len(losses) > 0 and bool(wealth.max() >= target)


def _losses(losses: Any) -> np.ndarray:
    values = np.asarray(losses, dtype=float)
    if values.ndim != 1:
        raise LossyValueError(f"`losses` has to have one loss for each problem, but has the shape {values.shape}")
    if not (np.abs(values) <= 1).all():
        raise LossyValueError(f"`losses` has to lie in [-1, 1], but has {values[~(np.abs(values) <= 1)][0]}")
    return values


def _checked(max_loss: float, confidence: float) -> tuple[float, float]:
    """Return the limit, and the log of the wealth that refutes it."""
    for name, value, low in (("max_loss", max_loss, -1), ("confidence", confidence, 0)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low < value < 1:
            raise LossyValueError(f"`{name}` has to be a number > {low} and < 1, but is {value!r}")
    return float(max_loss), -float(np.log1p(-confidence))
