"""Bounds on the mean of losses in [-1, 1] that hold at every number of problems, and the choice of a setting by them.

A bettor risks a share of their wealth on each problem against "the mean loss is at least m". If that is true, the
wealth ever exceeds 1/δ times the stake with probability at most δ (Ville). A larger wealth therefore refutes m with
confidence 1 - δ (Waudby-Smith & Ramdas 2023). The stake is divided among bettors with fixed shares, so nothing has to
be tuned to the variance of the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import LossyValueError

# The share of its wealth that each bettor risks on a problem.
SHARES = np.geomspace(0.001, 1.0, 16)


class LossTest:
    """A test of "the mean loss is at least ``max_loss``", one problem after the other.

    Once :attr:`certified` is true, the mean is below ``max_loss`` with the given confidence, however often it was read.

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
        self.largest = 0.0  # log of the largest wealth so far
        self.count = 0

    def add(self, loss: float) -> None:
        """Take one problem's loss, in [-1, 1]."""
        (loss,) = _losses([loss])
        self.logs = self.logs + growth_of(loss, self.max_loss)
        self.largest = max(self.largest, float(mixed(self.logs)))
        self.count += 1

    @property
    def certified(self) -> bool:
        """Whether the mean loss is below ``max_loss`` with the given confidence."""
        return self.largest >= self.target

    def hopeless(self, remaining: int) -> bool:
        """Tell whether ``remaining`` more problems are too few to certify it, even without a loss."""
        return not self.certified and float(mixed(self.logs + remaining * growth_of(0.0, self.max_loss))) < self.target

    def expected(self, limit: int) -> int:
        """Estimate the number of problems, at most ``limit``, at which the test ends."""
        if not self.count or self.certified:
            return self.count or limit
        counts = np.arange(self.count, limit + 1)
        logs = self.logs * (counts[:, None] / self.count)
        lossless = (limit - counts[:, None]) * growth_of(0.0, self.max_loss)
        ends = (mixed(logs) >= self.target) | (mixed(logs + lossless) < self.target)
        return int(counts[ends.argmax()])  # the test ends at the limit at the latest


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
    return _least(lambda mean: _refuted(values, mean, target), -1.0, 1.0)  # the wealth grows with the mean


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
    growths: Mapping[str, Sequence[Any]] | None = None,
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
    growths
        By name, the :func:`growth_beyond` ``(n,)`` of each setting's answers. A setting then has to pass both tests,
        each at the setting's whole risk: a setting that breaks one limit passes that limit's test with this risk at
        most (intersection-union test, Berger 1982).

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
        for i, losses in enumerate(settings):
            passed = _refuted(_losses(losses), *_checked(max_loss, 1 - risk))
            if growths is not None:
                passed = passed and _refuted(_losses(growths[name][i]), *_checked(0.0, 1 - risk))
            if not passed:
                break
            found.append((bound(losses, 1 - risk), 1 - risk))
        handed_on = risk if len(found) == len(settings) else 0.0
    return certified


def growth_beyond(share: float, own: Any, reference: Any, limit: int) -> np.ndarray:
    """Return ``(n,)`` numbers in [-1, 1] whose mean is below 0 iff answers grow by less than ``share``.

    ``own`` and ``reference`` ``(n,)`` are tokens of answers to the same problems, none above ``limit``. Growth is that
    of their means: ``E[own] < (1 + share) E[reference]``.

    Examples
    --------
    >>> growth_beyond(0.25, [50, 100], [40, 100], 100).tolist()
    [0.0, -0.2]
    """
    allowed = (1 + share) * np.asarray(reference, dtype=float)
    return (np.asarray(own, dtype=float) - allowed) / (max(1.0, 1 + share) * limit)


def growth_bound(own: Any, reference: Any, limit: int, confidence: float = 0.95) -> float:
    """Return the least growth of answers that :class:`LossTest` rules out; infinite if it is 10-fold or more.

    Arguments are those of :func:`growth_beyond` and :func:`bound`.
    """
    _, target = _checked(0.0, confidence)

    def below(share: float) -> bool:
        return _refuted(growth_beyond(share, own, reference, limit), 0.0, target)

    return _least(below, -0.99, 9.0) if len(own) and below(9.0) else float("inf")


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return, by bisection, the least number for which a statement holds; ``high`` if there is none."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _refuted(losses: np.ndarray, mean: float, target: float) -> bool:
    """Tell whether the log wealth of the bettors against ``mean`` has ever reached ``target``."""
    return len(losses) > 0 and bool(mixed(growth_of(losses[:, None], mean).cumsum(0)).max() >= target)


def growth_of(losses: Any, mean: float) -> np.ndarray:
    """Return ``(..., bettors)``: the log of each bettor's growth by losses ``(..., 1)``."""
    with np.errstate(divide="ignore"):
        return np.log1p(np.maximum(SHARES * (mean - losses) / (1 - mean), -1.0))


def mixed(logs: np.ndarray) -> np.ndarray:
    """Return ``(...)``: the log of all bettors' mean wealth, from ``(..., bettors)`` logs."""
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
