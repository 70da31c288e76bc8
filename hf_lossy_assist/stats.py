"""What a run did: tokens drafted, kept, corrected, and where the time went."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LossyStats:
    """Statistics of one ``generate()`` call.

    Attributes
    ----------
    rounds
        Draft-and-verify rounds.
    drafted
        Tokens proposed by the drafter.
    accepted
        Proposed tokens in the output.
    accepted_lossy
        Those of them that the lossless rule would have rejected (same random numbers).
    corrected, bonus
        Output tokens that came from the target: after a rejection, and after a fully accepted draft.
    target_calls, draft_calls
        Forward passes of the target, and of the draft model where the drafter counts them.
    accepted_histogram
        ``accepted_histogram[i]`` rounds kept i proposed tokens.
    accepted_by
        Accepted tokens credited to each rule.
    seconds
        Wall-clock seconds: ``total``, ``drafting``, ``verifying``, ``deciding``. On a GPU work is queued, so a
        stage's share includes waiting for earlier ones.
    lossless
        Whether the rule, as configured, could not change the output's law.
    trace
        For every output token: ``"accepted"``, ``"accepted_lossy"``, ``"corrected"`` or ``"bonus"``.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_lossy: int = 0
    corrected: int = 0
    bonus: int = 0
    target_calls: int = 0
    draft_calls: int = 0
    accepted_histogram: tuple[int, ...] = ()
    accepted_by: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    lossless: bool = True
    trace: tuple[str, ...] = field(default=(), repr=False)

    @property
    def mean_accepted(self) -> float:
        """Drafted tokens kept per round (no correction, no bonus)."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Output tokens per round."""
        return len(self.trace) / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were kept."""
        return self.accepted / self.drafted if self.drafted else 0.0


class StatsRecorder:
    """Collects one run's statistics round by round."""

    def __init__(self, lossless: bool) -> None:
        self.lossless = lossless
        self.rounds = self.drafted = self.target_calls = self.draft_calls = 0
        self.histogram: dict[int, int] = {}
        self.accepted_by: dict[str, int] = {}
        self.trace: list[str] = []
        self.seconds = dict.fromkeys(("drafting", "verifying", "deciding"), 0.0)
        self._started = time.perf_counter()
        self._stopped: float | None = None

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the block's time to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - started

    def round(
        self, drafted: int, n_accepted: int, committed: int, lossless: list[bool], kept_by: Mapping[str, list[bool]]
    ) -> None:
        """Count one round of which ``committed`` tokens reached the output (stopping may cut a round short)."""
        kept = min(n_accepted, committed)
        self.rounds += 1
        self.drafted += drafted
        self.histogram[kept] = self.histogram.get(kept, 0) + 1
        self.trace += ["accepted" if lossless[i] else "accepted_lossy" for i in range(kept)]
        if committed > n_accepted:
            self.trace.append("corrected" if n_accepted < drafted else "bonus")
        for rule, mask in kept_by.items():
            self.accepted_by[rule] = self.accepted_by.get(rule, 0) + sum(mask[:kept])

    def stop(self) -> None:
        """Note that the run may be over: reading the statistics later must not make it longer."""
        self._stopped = time.perf_counter()

    def finish(self) -> LossyStats:
        """Return the statistics of everything counted so far."""
        count = self.trace.count
        longest = max(self.histogram, default=-1)
        return LossyStats(
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=count("accepted") + count("accepted_lossy"),
            accepted_lossy=count("accepted_lossy"),
            corrected=count("corrected"),
            bonus=count("bonus"),
            target_calls=self.target_calls,
            draft_calls=self.draft_calls,
            accepted_histogram=tuple(self.histogram.get(i, 0) for i in range(longest + 1)),
            accepted_by=dict(self.accepted_by),
            seconds={"total": (self._stopped or time.perf_counter()) - self._started, **self.seconds},
            lossless=self.lossless,
            trace=tuple(self.trace),
        )
