"""A watch that warns when texts stop looking like those of a calibration."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..call.certificate import Certificate
from ..core.statistics import LossyStats
from ..errors import LossyValueError, warn

_JUMP = 0.01
_SLOPES = np.array([-1.0, 0.0, 1.0])


class Watch:
    """A test of whether texts are exchangeable with a calibration's, by the statistics of each text.

    Each statistic is ranked among all before it, and bets are placed on high or low ranks (conformal test martingales,
    Vovk's simple jumper). For texts like the calibration's, ranks are uniform, and the mean wealth ever exceeds
    ``1 / (1 - confidence)`` with probability at most ``1 - confidence``, however many texts there are. The watch does
    not measure quality: it notices that texts have changed, and only if the change moves these statistics.

    Parameters
    ----------
    usual
        The calibration's values by statistic, ``"mean_accepted"`` or ``"lossy_share"``.
    confidence
        Required before a warning, in (0, 1).
    warn
        Called once with the warning.
    seed
        Of the draws that break ties.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> watch = Watch({"mean_accepted": rng.normal(3, 0.5, 200)})
    >>> for kept in rng.normal(3, 0.5, 300):
    ...     watch.add({"mean_accepted": kept})
    >>> watch.alarmed
    False
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     for kept in rng.normal(2, 0.5, 100):
    ...         watch.add({"mean_accepted": kept})
    >>> watch.alarmed, len(caught)
    (True, 1)
    """

    def __init__(
        self,
        usual: Mapping[str, Sequence[float]],
        confidence: float = 0.99,
        warn: Callable[[str], Any] = warn,
        seed: int = 0,
    ) -> None:
        if not usual or min(map(len, usual.values())) < 2 or not 0 < confidence < 1:
            raise LossyValueError(
                f"`usual` has to have two values or more of every statistic and `confidence` has to be in (0, 1), but "
                f"there are { {name: len(values) for name, values in usual.items()} } and {confidence!r}"
            )
        rng = np.random.default_rng(seed)
        self._bets = {name: _Jumper(values, rng) for name, values in usual.items()}
        self._needed = -math.log1p(-confidence)
        self._warn = warn
        self.alarmed = False  # whether it has warned
        self.texts = 0

    @classmethod
    def of(cls, certificate: Certificate | str | Path, confidence: float = 0.99, **options: Any) -> Watch:
        """Return the watch for a certificate, or for its folder or repository."""
        loaded = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
        return cls(loaded.usual, confidence, **options)

    def add(self, text: LossyStats | Mapping[str, float]) -> None:
        """Add a call's statistics, row by row, or one text's values; warn once when the evidence is enough."""
        if isinstance(text, LossyStats):
            for row in text.rows or (text,):
                self.add({name: getattr(row, name) for name in self._bets})
            return
        for name, bet in self._bets.items():
            bet.add(text[name])
        self.texts += 1
        wealths = [bet.log_wealth for bet in self._bets.values()]
        if self.alarmed or np.logaddexp.reduce(wealths) - math.log(len(wealths)) < self._needed:
            return
        self.alarmed = True
        most = max(self._bets, key=lambda name: self._bets[name].log_wealth)
        self._warn(
            f"after {self.texts} texts, their {most} differs from the calibration's: the certificate may not hold for "
            "texts like these. Calibrate on new problems, or use `lossy_mode='lossless'`"
        )


class _Jumper:
    """Bets on the rank of each number among all before it, with a wealth of 1 at first."""

    def __init__(self, usual: Sequence[float], rng: np.random.Generator) -> None:
        self._seen = sorted(map(float, usual))
        self._capital = np.full(3, 1 / 3)
        self._rng = rng
        self.log_wealth = 0.0

    def add(self, value: float) -> None:
        low, high = bisect_left(self._seen, value), bisect_right(self._seen, value)
        rank = (low + self._rng.random() * (high - low + 1)) / (len(self._seen) + 1)
        insort(self._seen, value)
        mixed = (1 - _JUMP) * self._capital + _JUMP / 3
        grown = mixed * (1 + _SLOPES * (rank - 0.5))
        self.log_wealth += math.log(grown.sum())
        self._capital = grown / grown.sum()
