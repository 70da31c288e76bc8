"""A watch over the texts of today: do they look like those that a setting was calibrated on?"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LossyValueError
from ..stats import LossyStats
from .certificate import Certificate

_JUMP = 0.01
_SLOPES = np.array([-1.0, 0.0, 1.0])


class Watch:
    """A test of whether texts are exchangeable with a calibration's, by the drafted tokens kept per round of each.

    Each text's figure is ranked among all before it. Of texts like those calibrated on the ranks are uniform, so that
    whoever bets on higher or on lower ones (a conformal test martingale, Vovk's simple jumper) wins nothing: its wealth
    is ever above ``1 / (1 - confidence)`` with probability ``1 - confidence`` at most, however many texts there are.
    The acceptance of a text is no measure of its quality: a watch sees that texts are other ones, not that answers are
    worse; and a change that leaves acceptance alone passes unseen.

    Parameters
    ----------
    usual
        Drafted tokens kept per round, of each text of the calibration.
    confidence
        How sure to be before warning, in (0, 1).
    warn
        Is told once.
    seed
        Of the draws that break ties.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> watch = Watch(rng.normal(3, 0.5, 200))
    >>> for kept in rng.normal(3, 0.5, 300):
    ...     watch.add(kept)
    >>> watch.alarmed
    False
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     for kept in rng.normal(2, 0.5, 100):
    ...         watch.add(kept)
    >>> watch.alarmed, len(caught)
    (True, 1)
    """

    def __init__(
        self,
        usual: Sequence[float],
        confidence: float = 0.99,
        warn: Callable[[str], Any] = warnings.warn,
        seed: int = 0,
    ) -> None:
        if len(usual) < 2 or not 0 < confidence < 1:
            raise LossyValueError(
                f"`usual` has to have two texts or more and `confidence` has to be in (0, 1), but there are "
                f"{len(usual)} and {confidence!r}"
            )
        self._seen = sorted(map(float, usual))
        self._capital = np.full(3, 1 / 3)
        self._log_wealth = self._most = 0.0
        self._needed = -math.log1p(-confidence)
        self._warn = warn
        self._rng = np.random.default_rng(seed)
        self.texts = 0

    @classmethod
    def of(cls, certificate: Certificate | str | Path, confidence: float = 0.99, **options: Any) -> Watch:
        """Return the watch for a certificate, or for the folder or repository that it is in."""
        loaded = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
        return cls(loaded.kept_per_round, confidence, **options)

    @property
    def alarmed(self) -> bool:
        """Whether the texts so far looked unlike those of the calibration."""
        return self._most >= self._needed

    def add(self, text: LossyStats | float) -> None:
        """Take one call's statistics, row by row, or one text's figure; warn once when the evidence is enough."""
        if isinstance(text, LossyStats):
            for row in text.rows or (text,):
                self.add(row.mean_accepted)
            return
        before = self.alarmed
        low, high = bisect_left(self._seen, text), bisect_right(self._seen, text)
        rank = (low + self._rng.random() * (high - low + 1)) / (len(self._seen) + 1)
        insort(self._seen, text)
        mixed = (1 - _JUMP) * self._capital + _JUMP / 3
        grown = mixed * (1 + _SLOPES * (rank - 0.5))
        self._log_wealth += math.log(grown.sum())
        self._capital = grown / grown.sum()
        self._most = max(self._most, self._log_wealth)
        self.texts += 1
        if self.alarmed and not before:
            self._warn(
                f"after {self.texts} texts, the drafted tokens kept per round are unlike those of the calibration: "
                "what its certificate says may not hold for texts like these. Calibrate on problems of today, or use "
                "`lossy_mode='lossless'`"
            )
