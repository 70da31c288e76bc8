"""Bounds on the mean of losses in [-1, 1] that hold at every number of problems, and the choice of a setting by them.

Whoever bets against "the mean loss is at least m", each time a share of what there is, at odds that are fair at best,
has more than 1/δ times the stake with probability at most δ, ever (Ville): then m is refuted with confidence 1 - δ
(Waudby-Smith & Ramdas 2023). The stake is divided among bettors of fixed shares, so that nothing has to be tuned to
how much losses vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import LossyValueError

# What part of what they have the bettors risk on each problem. The boldest loses all by one whole loss, and wins most
# where there is none.
SHARES = np.geomspace(0.001, 1.0, 16)


class LossTest:
    """A test of "the mean loss is at least ``max_loss``", one problem after the other.

    Whenever :attr:`certified` is true, the mean is below with the confidence asked for, however often one has looked.

    Examples
    --------
    >>> test = LossTest(max_loss=0.01, confidence=0.95)
    >>> for problem in range(1000):
    ...     test.add(0.0)
    ...     if test.certified:
    ...         break
    >>> 300 < problem < 700
    True
    """

    def __init__(self, max_loss: float, confidence: float = 0.95) -> None:
        self.max_loss, self.target = _checked(max_loss, confidence)
        self.logs = np.zeros(len(SHARES))
        self.largest = 0.0  # log of the most that the bettors have had
        self.count = 0

    def add(self, loss: float) -> None:
        """Take one problem's loss, in [-1, 1]."""
        (loss,) = _losses([loss])
        self.logs = self.logs + growth_of(loss, self.max_loss)
        self.largest = max(self.largest, float(mixed(self.logs)))
        self.count += 1

    @property
    def certified(self) -> bool:
        """Whether the mean loss is below ``max_loss``, with the confidence asked for."""
        return self.largest >= self.target

    def hopeless(self, remaining: int) -> bool:
        """Tell whether even that many more problems without any loss would not certify it."""
        return not self.certified and float(mixed(self.logs + remaining * growth_of(0.0, self.max_loss))) < self.target


def bound(losses: Any, confidence: float = 0.95) -> float:
    """Return an upper bound of the mean of losses, at most 1: whatever their law, it fails with 1 - ``confidence``.

    The bound holds at all numbers of losses at once, so one may look, and stop, whenever one likes; for the same reason
    their order counts a little, and has to be fixed beforehand.

    Parameters
    ----------
    losses
        ``(n,)`` independent losses in [-1, 1] of one law, e.g. the reference's score less the setting's.
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
    for _ in range(40):  # the bettors' wealth grows with the mean that they bet against
        middle = (low + high) / 2
        low, high = (low, middle) if _refuted(values, middle, target) else (middle, high)
    return high


def select(losses: Any, max_loss: float, confidence: float = 0.95) -> int | None:
    """Return the last of several settings that is certified to lose at most ``max_loss`` on average, or None.

    Settings are tested one after the other, each with the whole confidence, up to the first that is not certified: so
    all that are certified hold at once with that confidence, however the settings' losses depend on each other (fixed
    sequence testing; Learn Then Test, Angelopoulos et al. 2021).

    Parameters
    ----------
    losses
        ``(n, m)`` losses in [-1, 1] on the same n problems, columns from the most cautious setting to the boldest: an
        order that was decided before looking at them.
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
    if columns.ndim != 2:
        raise LossyValueError(f"`losses` has to have the shape (problems, settings), but has {columns.shape}")
    limit, target = _checked(max_loss, confidence)
    last = None
    for i, column in enumerate(columns.T):
        if not _refuted(_losses(column), limit, target):
            break
        last = i
    return last


def certify(
    families: Mapping[str, Sequence[Any]], max_loss: float, confidence: float = 0.95
) -> dict[str, list[tuple[float, float]]]:
    """Return for each of several families of settings those that are certified, all at once with that confidence.

    The risk is divided equally among the families; one whose settings are all certified hands its own on to the next
    (the fallback procedure, Wiens & Dmitrienko 2005). Within a family it is as for :func:`select`.

    Parameters
    ----------
    families
        By name, the losses ``(n,)`` of each setting, from cautious to bold. Settings may have seen different problems.
    max_loss, confidence
        As for :func:`select`.

    Returns
    -------
    dict
        By name, of every certified setting its bound and the confidence with which that holds.
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


def _refuted(losses: np.ndarray, mean: float, target: float) -> bool:
    """Tell whether the bettors against that mean have ever had what it takes."""
    return len(losses) > 0 and bool(mixed(growth_of(losses[:, None], mean).cumsum(0)).max() >= target)


def growth_of(losses: Any, mean: float) -> np.ndarray:
    """Return ``(..., bettors)`` the log of what losses ``(..., 1)`` multiply each bettor's wealth by."""
    with np.errstate(divide="ignore"):
        return np.log1p(np.maximum(SHARES * (mean - losses) / (1 - mean), -1.0))


def mixed(logs: np.ndarray) -> np.ndarray:
    """Return ``(...)`` the log of all bettors' wealth together, of ``(..., bettors)`` the logs of each one's."""
    return np.logaddexp.reduce(logs, axis=-1) - np.log(len(SHARES))


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
