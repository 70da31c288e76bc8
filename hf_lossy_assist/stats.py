"""What a run did: tokens drafted, kept, corrected, and where the time went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from .errors import warn_once


@dataclass(frozen=True)
class LossyStats:
    """Statistics of one ``generate()`` call.

    For a batch, ``rows`` has every row's own, and what is counted here is the sum over rows: a round of four rows is
    four rounds. Only ``target_calls`` and ``draft_calls`` count forward passes, which rows share.

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
        Forward passes of the target, and of the draft model where the drafter counts them; for a row, those it took
        part in.
    accepted_histogram
        ``accepted_histogram[i]`` rounds kept i proposed tokens.
    accepted_by
        Accepted tokens credited to each rule.
    seconds
        Wall-clock seconds: ``total``, ``drafting``, ``verifying``, ``deciding``. On a GPU work is queued, so a
        stage's share includes waiting for earlier ones.
    lossless
        Whether the rule, as configured, could not change the output's law.
    unverified
        Accepted tokens that the target never judged, of a rule that runs ahead of it; they count as lossy.
    run_histogram
        ``run_histogram[i]`` runs committed i tokens before the target was asked.
    target_tokens, draft_tokens
        Tokens that went through each model's forward passes, padding included.
    head_calls
        Tokens that a head scored while drafting.
    flops
        For a rule that runs ahead: floating-point operations of all forwards, ``"actual"``, and by the paper's
        accounting, ``"paper"``, in which the target reads one token a call.
    plain_after
        Output tokens after which drafting was given up because the target alone is faster here; None where it
        was not.
    trace
        For every output token: ``"accepted"``, ``"accepted_lossy"``, ``"corrected"`` or ``"bonus"``; row after row.
    rows
        The statistics of every row of the batch; their ``seconds`` are the call's until the row ended.
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
    unverified: int = 0
    run_histogram: tuple[int, ...] = ()
    target_tokens: int = 0
    draft_tokens: int = 0
    head_calls: int = 0
    flops: Mapping[str, float] = field(default_factory=dict)
    plain_after: int | None = None
    trace: tuple[str, ...] = field(default=(), repr=False)
    rows: tuple[LossyStats, ...] = field(default=(), repr=False)

    @property
    def mean_accepted(self) -> float:
        """Drafted tokens kept per round (no correction, no bonus)."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Output tokens per round."""
        return len(self.trace) / self.rounds if self.rounds else 0.0

    @property
    def runs(self) -> int:
        """Runs of tokens committed ahead of the target."""
        return sum(self.run_histogram)

    @property
    def mean_run(self) -> float:
        """Tokens committed per run before the target was asked."""
        return self.unverified / self.runs if self.runs else 0.0

    @property
    def target_calls_per_100_tokens(self) -> float:
        """Forward passes of the target per 100 output tokens."""
        return 100 * self.target_calls / len(self.trace) if self.trace else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were kept."""
        return self.accepted / self.drafted if self.drafted else 0.0


class Lap:
    """Adds a block's time to one of several sums.

    Parameters
    ----------
    seconds, stage
        The sums, and which of them.
    """

    __slots__ = ("seconds", "stage", "started")

    def __init__(self, seconds: dict[str, float], stage: str) -> None:
        self.seconds = seconds
        self.stage = stage

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *raised: Any) -> None:
        self.seconds[self.stage] += time.perf_counter() - self.started


class StatsRecorder:
    """Collects one run's statistics round by round."""

    def __init__(self, lossless: bool) -> None:
        self.lossless = lossless
        self.rounds = self.drafted = self.target_calls = self.draft_calls = 0
        self.generated = self.lossy = self.unverified = 0
        self.target_tokens = self.draft_tokens = self.head_calls = 0
        self.flops: dict[str, float] = {}
        self.plain_after: int | None = None
        self.histogram: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        self.accepted_by: dict[str, int] = {}
        self.trace: list[str] = []
        self.seconds = dict.fromkeys(("drafting", "verifying", "deciding"), 0.0)
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def timed(self, stage: str) -> Lap:
        """Add the block's time to a stage."""
        return Lap(self.seconds, stage)

    def round(
        self, drafted: int, n_accepted: int, committed: int, lossless: list[bool], kept_by: Mapping[str, list[bool]]
    ) -> None:
        """Count one round of which ``committed`` tokens reached the output (stopping may cut a round short)."""
        kept = min(n_accepted, committed)
        self.rounds += 1
        self.generated += committed
        self.lossy += kept - sum(lossless[:kept])
        self.drafted += drafted
        self.histogram[kept] = self.histogram.get(kept, 0) + 1
        self.trace += ["accepted" if lossless[i] else "accepted_lossy" for i in range(kept)]
        if committed > n_accepted:
            self.trace.append("corrected" if n_accepted < drafted else "bonus")
        for rule, mask in kept_by.items():
            self.accepted_by[rule] = self.accepted_by.get(rule, 0) + sum(mask[:kept])

    def target_call(self, tokens: int) -> None:
        """Count one forward of the target."""
        self.target_calls += 1
        self.target_tokens += tokens

    def unseen(self, rule: str) -> None:
        """Count one drafted token that went to the output without the target."""
        self.generated += 1
        self.lossy += 1
        self.unverified += 1
        self.drafted += 1
        self.trace.append("accepted_lossy")
        self.accepted_by[rule] = self.accepted_by.get(rule, 0) + 1

    def run(self, length: int) -> None:
        """Count one run of ``length`` tokens ahead of the target."""
        self.runs[length] = self.runs.get(length, 0) + 1

    def gave_up(self) -> None:
        """Note that from here on nothing is drafted, and say so."""
        self.plain_after = self.generated
        warn_once(
            "speculative decoding is slower than the target alone here, so the rest of the text is decoded plainly. "
            "Use a smaller draft or another `num_assistant_tokens`; `lossy_config={'break_even': False}` forbids this."
        )

    def stop(self) -> None:
        """Note that the run may be over: reading the statistics later must not make it longer."""
        self._stopped = time.perf_counter()

    def finish(self) -> LossyStats:
        """Return the statistics of everything counted so far."""
        own = self._own()
        return replace(own, rows=(own,))

    def _own(self) -> LossyStats:
        count = self.trace.count
        return LossyStats(
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=count("accepted") + count("accepted_lossy"),
            accepted_lossy=count("accepted_lossy"),
            corrected=count("corrected"),
            bonus=count("bonus"),
            target_calls=self.target_calls,
            draft_calls=self.draft_calls,
            accepted_histogram=_dense(self.histogram),
            unverified=self.unverified,
            run_histogram=_dense(self.runs),
            target_tokens=self.target_tokens,
            draft_tokens=self.draft_tokens,
            head_calls=self.head_calls,
            flops=dict(self.flops),
            plain_after=self.plain_after,
            accepted_by=dict(self.accepted_by),
            seconds={"total": (self._stopped or time.perf_counter()) - self._started, **self.seconds},
            lossless=self.lossless,
            trace=tuple(self.trace),
        )


class BatchStatsRecorder:
    """Collects the statistics of a batch: the rows' own, and the time and the forwards that they share."""

    def __init__(self, lossless: bool, batch: int) -> None:
        self.rows = [StatsRecorder(lossless) for _ in range(batch)]
        self.shared = StatsRecorder(lossless)

    def timed(self, stage: str) -> Lap:
        """Add the block's time to a stage."""
        return self.shared.timed(stage)

    def target_call(self, tokens: int, each: int, rows: Sequence[int]) -> None:
        """Count one forward of the target over so many tokens in all, for the given rows."""
        self.shared.target_call(tokens)
        for row in rows:
            self.rows[row].target_call(each)

    def draft_work(self, calls: int, tokens: int, rows: Sequence[int]) -> None:
        """Note how many forwards of the draft model, and tokens in them, there have been so far."""
        done = tokens - self.shared.draft_tokens
        self.shared.draft_calls, self.shared.draft_tokens = calls, tokens
        for row in rows:
            self.rows[row].draft_calls = calls
            self.rows[row].draft_tokens += done // len(rows)

    def gave_up(self) -> None:
        """Note that from here on nothing is drafted."""
        self.shared.generated = sum(row.generated for row in self.rows)
        self.shared.gave_up()

    def ended(self, row: int) -> None:
        """Note that a row's text has ended."""
        self.rows[row].seconds = dict(self.shared.seconds)
        self.rows[row].plain_after = self.rows[row].generated if self.shared.plain_after is not None else None
        self.rows[row].stop()

    def finish(self) -> LossyStats:
        """Return the sums over rows, with the rows' own statistics."""
        rows = tuple(row._own() for row in self.rows)
        shared = self.shared._own()
        return replace(
            shared,
            **{name: sum(getattr(row, name) for row in rows) for name in _COUNTS},
            **_merged(rows),
            rows=rows,
        )


def joined(rows: Sequence[LossyStats]) -> LossyStats:
    """Return the sums over rows that were decoded one by one."""
    totals = {name: sum(getattr(row, name) for row in rows) for name in (*_COUNTS, *_CALLS)}
    return LossyStats(
        **totals,
        **_merged(rows),
        seconds=_added(row.seconds for row in rows),
        flops=_added(row.flops for row in rows),
        lossless=all(row.lossless for row in rows),
        plain_after=next((row.plain_after for row in rows if row.plain_after is not None), None),
        rows=tuple(replace(row, rows=()) for row in rows),
    )


def _merged(rows: Sequence[LossyStats]) -> dict[str, Any]:
    return {
        "accepted_histogram": _summed(row.accepted_histogram for row in rows),
        "run_histogram": _summed(row.run_histogram for row in rows),
        "accepted_by": _added(row.accepted_by for row in rows),
        "trace": tuple(kind for row in rows for kind in row.trace),
    }


def _added(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            totals[name] = totals.get(name, 0) + value
    return totals


_CALLS = ("target_calls", "draft_calls", "target_tokens", "draft_tokens", "head_calls")
_COUNTS = ("rounds", "drafted", "accepted", "accepted_lossy", "corrected", "bonus", "unverified")


def _summed(histograms: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*histograms, fillvalue=0)))


def _dense(histogram: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(histogram.get(i, 0) for i in range(max(histogram, default=-1) + 1))
