"""Recorders of the statistics of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .messages import DraftCost, RowDecision
from .statistics import WORK, LossyStats, TokenRecord, TokenScores, joined

_STAGES = ("drafting", "verifying", "deciding")


class RowRecorder:
    """Collects one row's statistics token by token, so that a text that is cut back can still be counted."""

    def __init__(self) -> None:
        self.records: list[TokenRecord] = []
        self.work = dict.fromkeys(WORK, 0)
        self._rules: dict[str, int] = {}
        # Per round: where its tokens begin among the records, how many drafted ones stay, and how many were drafted.
        self._rounds: list[tuple[int, int, int]] = []
        # Likewise of each run of tokens that no target checked: where it begins, and how many tokens it has.
        self._runs: list[tuple[int, int]] = []
        self._ended: tuple[float, Mapping[str, float]] | None = None

    def add(self, decision: RowDecision, committed: int) -> int:
        """Count a round that gave the output ``committed`` tokens (a stopping criterion may cut a round short).

        Return how many tokens were kept lossily.
        """
        kept = min(decision.n_accepted, committed)
        lossless = decision.lossless[:kept]
        kinds = ["accepted" if yes else "accepted_lossy" for yes in lossless]
        rules: list[str | None] = [None] * committed
        for rule, mask in decision.kept_by.items():
            self._rules.setdefault(rule, 0)
            for i in range(kept):
                if mask[i]:
                    rules[i] = rule
        if committed > kept:
            kinds.append("bonus" if decision.complete else "corrected")
        start = len(self.records)
        self._record(decision.tokens[:committed], kinds, rules, decision.scores[:committed])
        self._rounds.append((start, kept, decision.drafted))
        return kept - sum(lossless)

    def add_run(self, tokens: Sequence[int], rule: str, scores: Sequence[TokenScores]) -> None:
        """Count tokens that the draft committed without the target."""
        count = len(tokens)
        self._runs.append((len(self.records), count))
        self._record(tokens, ["unverified"] * count, [rule] * count, scores)

    def _record(
        self, tokens: Sequence[int], fates: Sequence[str], rules: Sequence[str | None], scores: Sequence[TokenScores]
    ) -> None:
        """Add tokens of the output: their fates, and the rules that they are credited to."""
        of_tokens = zip(tokens, fates, rules, scores or (None,) * len(tokens), strict=True)
        number = len(self._rounds)
        self.records += [TokenRecord(token, fate, number, rule, said) for token, fate, rule, said in of_tokens]

    def cut(self, length: int) -> None:
        """Remove all but the first ``length`` tokens."""
        del self.records[length:]

    def end(self, seconds: Mapping[str, float]) -> None:
        """Note that the text has ended, and the time of the call's stages until then."""
        self._ended = time.perf_counter(), dict(seconds)

    def finish(self, lossless: bool, started: float) -> LossyStats:
        length, kinds = len(self.records), Counter(record.kind for record in self.records)
        reached = [x for x in self._rounds if x[0] < length]  # others were cut off whole
        runs = [min(count, length - start) for start, count in self._runs if start < length]
        credits = Counter(record.rule for record in self.records if record.rule is not None)
        at, seconds = self._ended or (time.perf_counter(), {})
        return LossyStats(
            rounds=len(reached),
            drafted=sum(drafted for *_, drafted in reached) + sum(runs),
            accepted=kinds["accepted"] + kinds["accepted_lossy"],
            accepted_lossy=kinds["accepted_lossy"],
            corrected=kinds["corrected"],
            bonus=kinds["bonus"],
            **self.work,
            accepted_histogram=histogram([min(kept, length - start) for start, kept, _ in reached]),
            accepted_by=self._rules | credits,
            seconds={"total": at - started, **seconds},
            lossless=lossless,
            unverified=sum(runs),
            run_histogram=histogram(runs),
            records=tuple(self.records),
        )


class StatsRecorder:
    """Collects one run's statistics: the rows' own, and the time and forwards that they share."""

    def __init__(self, lossless: bool, rows: int = 1, first: int = 0) -> None:
        self.lossless = lossless
        self.rows = {row: RowRecorder() for row in range(first, first + rows)}
        self.laps: list[dict[str, float]] = []  # of each round, the seconds of its stages
        self.work = dict.fromkeys(WORK, 0)
        self._started = time.perf_counter()
        self._stopped: float | None = None

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each stage so far."""
        return {stage: sum((lap[stage] for lap in self.laps), 0.0) for stage in _STAGES}

    def start(self) -> None:
        """Begin a round."""
        self._lap = time.perf_counter()
        self.laps.append(dict.fromkeys(_STAGES, 0.0))

    def lap(self, stage: str) -> None:
        """Add the time since the last stage to this one, and begin the next."""
        now = time.perf_counter()
        self.laps[-1][stage] += now - self._lap
        self._lap = now

    def target_call(self, tokens: int, rows: Sequence[int], among: int) -> None:
        """Count one forward of the target over ``tokens`` of ``among`` rows, for the rows that asked for it."""
        self._count("target", 1, tokens, rows, among)

    def draft_work(self, cost: DraftCost, rows: Sequence[int]) -> None:
        """Count the cost of a proposal for the given rows."""
        self._count("draft", cost.calls, cost.tokens, rows, len(rows))
        self.work["looked_up"] += cost.looked_up

    def _count(self, model: str, calls: int, tokens: int, rows: Sequence[int], among: int) -> None:
        self.work[f"{model}_calls"] += calls
        self.work[f"{model}_tokens"] += tokens
        for row in rows:
            work = self.rows[row].work
            work[f"{model}_calls"] += calls
            work[f"{model}_tokens"] += tokens // among

    def stop(self) -> None:
        """Note the time: reading the statistics later must not make the run longer."""
        self._stopped = time.perf_counter()

    def finish(self) -> LossyStats:
        """Return the sums over rows, with the rows' own statistics."""
        rows = [row.finish(self.lossless, self._started) for row in self.rows.values()]
        total = (self._stopped or time.perf_counter()) - self._started
        shared = {**self.work, "seconds": {"total": total, **self.seconds}}
        if len(rows) == 1:
            rows = [replace(rows[0], **shared)]
        return replace(joined(rows), **shared)


def histogram(values: Sequence[int]) -> tuple[int, ...]:
    """Return how often each number from 0 on is among the values."""
    counts = Counter(values)
    return tuple(counts[i] for i in range(max(counts, default=-1) + 1))
