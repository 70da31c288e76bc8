"""Does drafting pay here? If not, decode plainly."""

from __future__ import annotations

import statistics
import threading
import time
import weakref
from collections.abc import Callable, Hashable

from torch import nn

from ..errors import warn_once

PATIENCE = 0.5
"""Seconds of drafting after which the target alone is measured for the first time."""


class SpeedComparison:
    """What is known of the speed of drafting against that of the target alone, of one pair of models on one device.

    Whichever of the two seems faster is used. After ``patience`` seconds and ``rounds`` rounds of it, ``probes`` rounds
    of the other are measured, and the faster one goes on: by more than 10 %, or nothing changes. After a change the
    next measurement comes after four times ``patience``; as long as nothing changes, it comes after twice the time of
    the last, up to ``longest`` seconds. Calls in several threads may share it.

    Parameters
    ----------
    patience, longest
        Seconds before the first measurement, and between any two at most.
    rounds
        Rounds before a measurement, at least.
    probes
        Rounds that a measurement takes. The first round after a change is not measured, in which the draft model has
        to catch up.
    """

    MARGIN = 0.9

    def __init__(self, patience: float = PATIENCE, longest: float = 30.0, rounds: int = 4, probes: int = 3) -> None:
        self.first_patience = self.patience = patience
        self.longest = longest
        self.rounds = rounds
        self.probes = probes
        self.plain = False
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._current: list[float] = []  # seconds per token of each round
        self._seconds = 0.0
        self._tokens = 0
        self._probed: list[float] = []
        self._caught_up = False

    @property
    def next_is_plain(self) -> bool:
        """Whether the next round is to have no draft."""
        return self.plain is not self._probing

    @property
    def _probing(self) -> bool:
        return len(self._current) >= self.rounds and self._seconds >= self.patience

    def observe(self, was_plain: bool, seconds: float, tokens: float) -> bool:
        """Learn what a round has cost; return whether drafting is given up with it."""
        with self._lock:
            if was_plain is self.plain:
                self._current.append(seconds / tokens)
                self._seconds += seconds
                self._tokens += tokens
                return False
            if not self._caught_up:
                self._caught_up = True
                return False
            self._probed.append(seconds / tokens)
            if len(self._probed) < self.probes:
                return False
            return self._decide()

    def _decide(self) -> bool:
        # Rounds of drafting differ in their tokens, so their mean counts; single plain rounds may be disturbed.
        current = statistics.median(self._current) if self.plain else self._seconds / self._tokens
        other = statistics.mean(self._probed) if self.plain else statistics.median(self._probed)
        changes = other < self.MARGIN * current
        # Having changed for the faster one, there is less need to measure the slower.
        self.patience = 4 * self.first_patience if changes else min(2 * self.patience, self.longest)
        self.plain = self.plain is not changes
        self._begin()
        return changes and self.plain


_comparisons: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, SpeedComparison]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def speed_comparison(target: nn.Module, *situation: Hashable) -> SpeedComparison:
    """Return what earlier calls have learnt of a target in a situation: its draft, the device, the rule, the rows."""
    with _lock:
        return _comparisons.setdefault(target, {}).setdefault(situation, SpeedComparison(PATIENCE))


def forget_speeds() -> None:
    """Forget what all calls have learnt."""
    _comparisons.clear()


class BreakEven:
    """Decides in one call, from round to round, whether to draft.

    Parameters
    ----------
    comparison
        What is known, and learnt on.
    clock
        Gives the time in seconds.
    """

    def __init__(self, comparison: SpeedComparison, clock: Callable[[], float] = time.perf_counter) -> None:
        self.comparison = comparison
        self.clock = clock
        self.plain = comparison.next_is_plain
        self._started: float | None = None  # the first round reads the prompt too, and is not counted

    def observe(self, tokens: float) -> bool:
        """Count a round that has just given ``tokens`` tokens; return whether drafting is given up with it."""
        now = self.clock()
        started, self._started = self._started, now
        gives_up = started is not None and self.comparison.observe(self.plain, now - started, tokens)
        if gives_up:
            warn_once(
                "speculative decoding is slower than the target alone here, so texts are decoded plainly, and drafting "
                "is tried again now and then. Use a smaller draft or another `num_assistant_tokens`; "
                "`lossy_config={'break_even': False}` forbids this."
            )
        self.plain = self.comparison.next_is_plain
        return gives_up


class AlwaysDraft:
    """Drafts in every round, for runs that have to be the same whatever the time."""

    plain = False

    def observe(self, tokens: float) -> bool:
        """Take no notice."""
        return False
