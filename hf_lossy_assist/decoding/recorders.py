"""What collects a run's statistics while it decodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..inspection import Judgement, TokenRecord
from ..stats import COUNTS, WORK, LossyStats, merged

if TYPE_CHECKING:
    from ..messages import DraftCost
    from .row_decision import RowDecision


class StageTimer:
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


class RowRecorder:
    """Collects one row's statistics, token by token, so that a text that is cut back can still be counted.

    Attributes
    ----------
    trace
        As in :class:`LossyStats`.
    lossy
        Tokens kept lossily so far.
    charged
        What a rule with a budget over the whole text has charged it so far.
    work
        Forward passes and tokens in them, by their names in :class:`LossyStats`.
    """

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.lossy = 0
        self.charged = 0.0
        self.work = dict.fromkeys(WORK, 0)
        self._credits: list[str | None] = []  # per token, the rule that an accepted one is credited to
        # Per token, its id, its round, whether the target was not asked, and what the models said about it.
        self._tokens: list[tuple[int, int, bool, Judgement | None]] = []
        self._rules: dict[str, int] = {}
        # Per round: where its tokens begin in the trace, where those begin that the target decided, how many of these
        # were kept, and how many it was to decide.
        self._rounds: list[tuple[int, int, int, int]] = []
        self._runs_ahead = False
        self._ended: tuple[float, Mapping[str, float]] | None = None
        self._plain_after: int | None = None

    @property
    def generated(self) -> int:
        """Tokens of the output so far."""
        return len(self.trace)

    @property
    def rounds(self) -> int:
        """Rounds in which the target decided a token of the output."""
        return sum(decided < len(self.trace) for _, decided, _, _ in self._rounds)

    def add(self, decision: RowDecision, undecided: int, committed: int, trusting: str | None) -> None:
        """Count a round of which ``committed`` tokens reached the output (stopping may cut a round short).

        ``undecided`` is the number of drafted tokens that the target was to decide, and ``trusting`` the rule that
        tokens which it was not asked about are credited to, for a rule that has such tokens.
        """
        start, trusted = len(self.trace), min(decision.trusted, committed)
        kept = min(decision.n_accepted, committed - trusted)
        lossless = decision.lossless[:kept]
        self.lossy += trusted + kept - sum(lossless)
        self.charged += decision.charge
        self.trace += ["accepted_lossy"] * trusted + ["accepted" if yes else "accepted_lossy" for yes in lossless]
        credits: list[str | None] = [None] * kept
        for rule, mask in decision.kept_by.items():
            self._rules.setdefault(rule, 0)
            for i in range(kept):
                if mask[i]:
                    credits[i] = rule
        self._credits += [trusting] * trusted + credits
        if committed > trusted + kept:
            self.trace.append("bonus" if decision.used_up(undecided) else "corrected")
            self._credits.append(None)
        judgements = decision.judgements[:committed] or (None,) * committed
        for i, (token, judgement) in enumerate(zip(decision.tokens[:committed], judgements, strict=True)):
            self._tokens.append((token, len(self._rounds), i < trusted, judgement))
        self._rounds.append((start, start + trusted, kept, undecided))
        self._runs_ahead = self._runs_ahead or trusting is not None

    def cut(self, length: int) -> None:
        """Let only the first ``length`` tokens be the text."""
        del self.trace[length:], self._credits[length:], self._tokens[length:]

    def gave_up(self) -> None:
        """Note that from here on nothing is drafted, if the text goes on."""
        if self._ended is None:
            self._plain_after = self.generated

    def end(self, seconds: Mapping[str, float]) -> None:
        """Note that the text has ended, and what the call's stages have taken until then."""
        self._ended = time.perf_counter(), dict(seconds)

    def finish(self, lossless: bool, started: float) -> LossyStats:
        """Return the statistics of the text."""
        length, count = len(self.trace), self.trace.count
        reached = [x for x in self._rounds if x[0] < length]  # others were cut off whole
        runs = [min(decided, length) - start for start, decided, _, _ in reached] if self._runs_ahead else []
        asked = [x for x in reached if x[1] < length]
        kept = [min(kept, length - decided) for _, decided, kept, _ in asked]
        credits = Counter(rule for rule in self._credits if rule is not None)
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
            plain_after=self._plain_after,
            accepted_by=self._rules | credits,
            seconds={"total": at - started, **seconds},
            lossless=lossless,
            trace=tuple(self.trace),
            records=tuple(map(_record, self._tokens, self.trace, self._credits)),
        )


class StatsRecorder:
    """Collects one run's statistics: the rows' own, and the time and the forwards that they share.

    Parameters
    ----------
    lossless
        Whether the rule, as configured, could not change the output's law.
    rows
        How many rows there are.
    """

    def __init__(self, lossless: bool, rows: int = 1) -> None:
        self.lossless = lossless
        self.rows = [RowRecorder() for _ in range(rows)]
        self.seconds = dict.fromkeys(("drafting", "verifying", "deciding"), 0.0)
        self.flops: Mapping[str, float] = {}
        self._work = dict.fromkeys(WORK, 0)
        self._plain_after: int | None = None
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def timed(self, stage: str) -> StageTimer:
        """Add the block's time to a stage."""
        return StageTimer(self.seconds, stage)

    def target_call(self, tokens: int, rows: Sequence[int], among: int) -> None:
        """Count one forward of the target over so many tokens of ``among`` rows, for those that asked for it."""
        self._count("target", 1, tokens, rows, among)

    def draft_work(self, cost: DraftCost, rows: Sequence[int]) -> None:
        """Count what a proposal for the given rows has cost."""
        self._count("draft", cost.calls, cost.tokens, rows, len(rows))
        self._work["head_calls"] += cost.scored

    def _count(self, model: str, calls: int, tokens: int, rows: Sequence[int], among: int) -> None:
        self._work[f"{model}_calls"] += calls
        self._work[f"{model}_tokens"] += tokens
        for row in rows:
            work = self.rows[row].work
            work[f"{model}_calls"] += calls
            work[f"{model}_tokens"] += tokens // among

    def gave_up(self) -> None:
        """Note that from here on nothing is drafted."""
        self._plain_after = sum(row.generated for row in self.rows)
        for row in self.rows:
            row.gave_up()

    def end(self, row: int) -> None:
        """Note that a row's text has ended."""
        self.rows[row].end(self.seconds)

    def stop(self) -> None:
        """Note that the run may be over: reading the statistics later must not make it longer."""
        self._stopped = time.perf_counter()

    @property
    def work(self) -> Mapping[str, int]:
        """Forward passes and tokens in them so far, of all rows together."""
        return self._work

    def finish(self) -> LossyStats:
        """Return the sums over rows, with the rows' own statistics."""
        rows = tuple(row.finish(self.lossless, self._started) for row in self.rows)
        total = (self._stopped or time.perf_counter()) - self._started
        both = {**self._work, "flops": dict(self.flops), "plain_after": self._plain_after}
        seconds = {"total": total, **self.seconds}
        if len(rows) == 1:
            own = replace(rows[0], **both, seconds=seconds)
            return replace(own, rows=(own,))
        counts = {name: sum(getattr(row, name) for row in rows) for name in COUNTS}
        return LossyStats(**counts, **both, **merged(rows), seconds=seconds, lossless=self.lossless, rows=rows)


def _record(token: tuple[int, int, bool, Judgement | None], kind: str, rule: str | None) -> TokenRecord:
    number, came_in, unseen, judgement = token
    return TokenRecord(number, "unseen" if unseen else kind, came_in, rule, judgement)


def _histogram(values: Sequence[int]) -> tuple[int, ...]:
    counts = Counter(values)
    return tuple(counts[i] for i in range(max(counts, default=-1) + 1))
