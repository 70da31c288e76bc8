"""Measures whether drafting pays; where it does not, later calls are decoded plainly."""

from __future__ import annotations

import functools
import statistics
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import astuple, dataclass, field
from enum import IntEnum
from typing import Any

from torch import nn

from ..drafting.draft_length import Stopwatch
from ..errors import warn_once

ROUNDS, VERDICTS = 16, 3
"""Rounds in a comparison of drafting with plain decoding; losses in a row after which drafting is given up."""
CLEARLY = 0.9
"""Drafting or plain decoding wins a comparison if its time per token is below this share of the other's."""
LONG, PROBES = 50, 3
"""Rounds after which a call may run a forward that only measures (2 % of its time at most); measurements needed."""
WAIT, LONGEST_WAIT = 8, 512
"""Plain calls before drafting is tried again, at first and at most."""


class Plan(IntEnum):
    """How a call is decoded, from its first round to its last."""

    DRAFT = 0
    DRAFT_AND_PROBE = 1
    PLAIN = 2


@dataclass(frozen=True)
class Pace:
    """Rounds, the tokens that each row got in them, and their seconds."""

    rounds: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    drafting: float = 0.0  # seconds of them
    verifying: float = 0.0

    def __add__(self, other: Pace) -> Pace:
        return Pace(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def per_token(self) -> float:
        """Seconds per token."""
        return self.seconds / max(1.0, self.tokens)

    def plain(self, share: float) -> float:
        """Return the most that a plain token takes: a round without its draft.

        A forward over one token takes ``share`` of one over a draft.
        """
        return (self.seconds - self.drafting - (1 - share) * self.verifying) / self.rounds


class Experience:
    """The measured speed of drafting in one situation, against that of plain decoding.

    A comparison pools calls until they have 16 rounds. Drafting is given up when it has clearly lost three in a row.
    Eight plain calls follow, which measure the plain token. Drafting is then tried until there is a comparison with it;
    unless drafting clearly wins, twice as many plain calls follow. Several threads may share an instance.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._long = 0
        self._start()

    def _start(self) -> None:
        self._drafted = self._alone = Pace()
        self._shares: deque[float] = deque(maxlen=PROBES)
        self._lost = self._wait = self._waits = 0

    @property
    def plan(self) -> Plan:
        """The next call's plan. Long calls probe ever more rarely: the first, second, fourth, eighth and so on."""
        return Plan.PLAIN if self._waits > 0 else Plan(not self._long & (self._long + 1))

    def learn(self, plain: bool, pace: Pace, share: float | None = None) -> bool:
        """Learn from a call, decoded plainly or with drafts; return whether drafting is given up with it.

        ``share`` is the time of a probed forward of the target over one token, as a share of one over a draft.
        """
        with self._lock:
            if plain:
                self._waits -= 1
                self._alone += pace
                return False
            self._long += pace.rounds >= LONG
            self._shares.extend(() if share is None else (share,))
            self._drafted += pace
            return self._drafted.rounds >= ROUNDS and self._compare()

    def _compare(self) -> bool:
        drafted, self._drafted = self._drafted, Pace()
        share = statistics.median(self._shares) if len(self._shares) == PROBES else 1.0
        plain = self._alone.per_token if self._alone.rounds else drafted.plain(share)
        given_up = self._wait > 0
        if given_up and drafted.per_token < CLEARLY * plain:
            self._start()
            return False
        self._lost = self._lost + 1 if plain < CLEARLY * drafted.per_token else 0
        if given_up or self._lost >= VERDICTS:
            self._wait = self._waits = min(2 * self._wait, LONGEST_WAIT) or WAIT
            self._alone = Pace()
        return self._wait > 0 and not given_up


_known: weakref.WeakKeyDictionary[nn.Module, Callable[..., Experience]] = weakref.WeakKeyDictionary()


def experience_of(target: nn.Module, *situation: Hashable) -> Experience:
    """Return what calls have measured of a target in a situation; the latest 256 situations are remembered."""
    return _known.setdefault(target, functools.lru_cache(256)(lambda *_: Experience()))(*situation)


def forget_speeds() -> None:
    """Forget what all calls have measured."""
    _known.clear()


@dataclass(eq=False)
class BreakEven:
    """Times the rounds of one call, which follows a plan, for the calls after it."""

    experience: Experience
    plan: Plan
    watch: Stopwatch
    _marks: list[Any] = field(default_factory=list)
    _rounds: deque[tuple[list[Any], float, int]] = field(default_factory=lambda: deque(maxlen=256))
    _probe: tuple[Any, Any] | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.plan is Plan.PLAIN

    def mark(self) -> None:
        """Take the time: before a round, after its draft, and after its verification."""
        self._marks.append(self.watch.mark())

    def end(self, tokens: float, rows: int, first: bool) -> None:
        """End a round of ``rows`` rows, which got ``tokens`` tokens each; a text's ``first`` round does not count."""
        self.mark()
        if len(self._marks) == 4 and not first:  # rounds with fewer marks had no verification
            self._rounds.append((self._marks, tokens, rows))
        self._marks = []

    def probe(self, rehearse: Callable[[Callable[[], Any]], tuple[Any, Any] | None]) -> None:
        """Time a plain forward of the target after the last round, if the plan has it and the call was long.

        ``rehearse`` runs it between two marks and forgets it, if it can.
        """
        if self.plan is Plan.DRAFT_AND_PROBE and self._probe is None and len(self._rounds) >= LONG:
            self._probe = rehearse(self.watch.mark)

    def finish(self) -> None:
        """Let the experience learn, and warn where later calls will be decoded plainly."""
        took, pace, share = self.watch.between, Pace(), None
        for (begin, drafted, verified, end), tokens, _ in self._rounds:
            pace += Pace(1, tokens, took(begin, end), took(begin, drafted), took(drafted, verified))
        if self._probe is not None:
            rows = self._rounds[-1][2]  # the probed forward had as many
            usual = statistics.median(took(marks[1], marks[2]) for marks, _, own in self._rounds if own == rows)
            share = min(1.0, took(*self._probe) / usual) if usual > 0 else None
        if self.experience.learn(self.plain, pace, share):
            warn_once(
                "speculative decoding is slower than the target alone here, so later calls like this one are decoded "
                "plainly, and drafting is tried again now and then. Texts of a lossy rule change with that. Use a "
                "smaller draft or another `num_assistant_tokens`; `lossy_config={'break_even': False}` forbids this."
            )
