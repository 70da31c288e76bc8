"""Recorders of the statistics of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .messages import DraftCost, RowDecision
from .statistics import WORK, LossyStats, joined
from .token_records import TokenRecord


class RowRecorder:
    """Collects one row's statistics token by token, so that a text that is cut back can still be counted."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.records: list[TokenRecord] = []
        self.work = dict.fromkeys(WORK, 0)
        self._rules: dict[str, int] = {}
        # Per round: where its tokens begin in the trace, where those that the target decided begin, how many drafted
        # ones of these stay, and how many the target had to decide.
        self._rounds: list[tuple[int, int, int, int]] = []
        self._drafts_unverified = False
        self._ended: tuple[float, Mapping[str, float]] | None = None

    @property
    def rounds(self) -> int:
        """Rounds in which the target decided a token of the output."""
        return sum(decided < len(self.trace) for _, decided, _, _ in self._rounds)

    def add(self, decision: RowDecision, undecided: int, committed: int, unverified_by: str | None) -> int:
        """Count a round of which ``committed`` tokens reached the output (a stopping criterion may cut a round short).

        ``undecided`` is the number of drafted tokens for the target to decide; ``unverified_by`` is the rule that
        unverified tokens are credited to, if there is one. Return how many tokens were kept lossily.
        """
        start, unverified = len(self.trace), min(decision.unverified, committed)
        kept = min(decision.n_accepted, committed - unverified)
        lossless = decision.lossless[:kept]
        decided = ["accepted" if yes else "accepted_lossy" for yes in lossless]
        rules = [unverified_by] * unverified + [None] * (committed - unverified)
        for rule, mask in decision.kept_by.items():
            self._rules.setdefault(rule, 0)
            for i in range(kept):
                if mask[i]:
                    rules[unverified + i] = rule
        if committed > unverified + kept:
            decided.append("bonus" if decision.complete else "corrected")
        self.trace += ["accepted_lossy"] * unverified + decided
        scores = decision.scores[:committed] or (None,) * committed
        tokens = zip(decision.tokens[:committed], ["unverified"] * unverified + decided, rules, scores, strict=True)
        number = len(self._rounds)
        self.records += [TokenRecord(token, status, number, rule, said) for token, status, rule, said in tokens]
        self._rounds.append((start, start + unverified, kept, undecided))
        self._drafts_unverified = self._drafts_unverified or unverified_by is not None
        return unverified + kept - sum(lossless)

    def cut(self, length: int) -> None:
        """Remove all but the first ``length`` tokens."""
        del self.trace[length:], self.records[length:]

    def end(self, seconds: Mapping[str, float]) -> None:
        """Note that the text has ended, and the time of the call's stages until then."""
        self._ended = time.perf_counter(), dict(seconds)

    def finish(self, lossless: bool, started: float) -> LossyStats:
        length, count = len(self.trace), self.trace.count
        reached = [x for x in self._rounds if x[0] < length]  # others were cut off whole
        runs = [min(decided, length) - start for start, decided, _, _ in reached] if self._drafts_unverified else []
        asked = [x for x in reached if x[1] < length]
        kept = [min(kept, length - decided) for _, decided, kept, _ in asked]
        credits = Counter(record.rule for record in self.records if record.rule is not None)
        at, seconds = self._ended or (time.perf_counter(), {})
        return LossyStats(
            rounds=len(asked),
            drafted=sum(runs) + sum(undecided for *_, undecided in asked),
            accepted=count("accepted") + count("accepted_lossy"),
            accepted_lossy=count("accepted_lossy"),
            corrected=count("corrected"),
            bonus=count("bonus"),
            **self.work,
            accepted_histogram=_histogram(kept),
            unverified=sum(runs),
            run_histogram=_histogram(runs),
            accepted_by=self._rules | credits,
            seconds={"total": at - started, **seconds},
            lossless=lossless,
            trace=tuple(self.trace),
            records=tuple(self.records),
        )


class StatsRecorder:
    """Collects one run's statistics: the rows' own, and the time and forwards that they share."""

    def __init__(self, lossless: bool, rows: int = 1, first: int = 0) -> None:
        self.lossless = lossless
        self.rows = {row: RowRecorder() for row in range(first, first + rows)}
        self.seconds = dict.fromkeys(("drafting", "verifying", "deciding"), 0.0)
        self.flops: Mapping[str, float] = {}
        self.work = dict.fromkeys(WORK, 0)
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def start(self) -> None:
        """Begin a stage."""
        self._lap = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last stage to this one, and begin the next."""
        now = time.perf_counter()
        self.seconds[stage] += now - self._lap
        self._lap = now

    def target_call(self, tokens: int, rows: Sequence[int], among: int) -> None:
        """Count one forward of the target over ``tokens`` of ``among`` rows, for the rows that asked for it."""
        self._count("target", 1, tokens, rows, among)

    def draft_work(self, cost: DraftCost, rows: Sequence[int]) -> None:
        """Count the cost of a proposal for the given rows."""
        self._count("draft", cost.calls, cost.tokens, rows, len(rows))
        self.work["head_calls"] += cost.scored

    def _count(self, model: str, calls: int, tokens: int, rows: Sequence[int], among: int) -> None:
        self.work[f"{model}_calls"] += calls
        self.work[f"{model}_tokens"] += tokens
        for row in rows:
            work = self.rows[row].work
            work[f"{model}_calls"] += calls
            work[f"{model}_tokens"] += tokens // among

    def end(self, row: int) -> None:
        self.rows[row].end(self.seconds)

    def stop(self) -> None:
        """Note the time: reading the statistics later must not make the run longer."""
        self._stopped = time.perf_counter()

    def finish(self) -> LossyStats:
        """Return the sums over rows, with the rows' own statistics."""
        rows = [row.finish(self.lossless, self._started) for row in self.rows.values()]
        total = (self._stopped or time.perf_counter()) - self._started
        shared = {**self.work, "flops": dict(self.flops), "seconds": {"total": total, **self.seconds}}
        if len(rows) == 1:
            rows = [replace(rows[0], **shared)]
        return replace(joined(rows), **shared)


def _histogram(values: Sequence[int]) -> tuple[int, ...]:
    counts = Counter(values)
    return tuple(counts[i] for i in range(max(counts, default=-1) + 1))
