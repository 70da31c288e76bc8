"""Is speculation worth it here? If not, decode plainly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


class BreakEven:
    """Compares speculation with the target alone, now and then, and gives it up where it is slower.

    After ``patience`` seconds and ``rounds`` rounds, a few rounds without a draft measure what a token of the
    target alone costs. Where that is clearly less than what a token has cost so far, the run stays plain; otherwise
    it is asked again after twice the time.

    Parameters
    ----------
    patience
        Seconds before the first comparison.
    rounds
        Rounds before a comparison, at least.
    clock
        Gives the time in seconds.
    """

    PROBES = 4
    MARGIN = 0.95

    def __init__(
        self, patience: float = 10.0, rounds: int = 32, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.patience = patience
        self.rounds = rounds
        self.clock = clock
        self.given_up = False
        self._probes: list[float] = []
        self._seconds = 0.0
        self._seen = self._tokens = 0
        self._started = clock()

    @property
    def plain(self) -> bool:
        """Whether the next round is to have no draft."""
        return self.given_up or self._due

    @property
    def _due(self) -> bool:
        return self._seen >= self.rounds and self._seconds >= self.patience

    def observe(self, tokens: int) -> bool:
        """Count a round that has just given ``tokens`` tokens; return whether it is the one to give up after."""
        now = self.clock()
        seconds, self._started = now - self._started, now
        if self.given_up:
            return False
        if not self._due:
            self._seconds += seconds
            self._tokens += tokens
            self._seen += 1
            return False
        self._probes.append(seconds / tokens)
        if len(self._probes) < self.PROBES:
            return False
        self.given_up = statistics.median(self._probes) < self.MARGIN * self._seconds / self._tokens
        self._probes, self._seconds, self._seen, self._tokens = [], 0.0, 0, 0
        self.patience *= 2
        return self.given_up


class NoBreakEven(BreakEven):
    """Never gives up, for runs that have to be the same whatever the time."""

    @property
    def plain(self) -> bool:
        return False

    def observe(self, tokens: int) -> bool:
        return False
