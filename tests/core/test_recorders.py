"""Statistics are what a list with one record per token says."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from hf_lossy_assist.core.messages import DraftCost, RowDecision
from hf_lossy_assist.core.recorders import RowRecorder, StatsRecorder
from hf_lossy_assist.core.statistics import LossyStats, TokenRecord, TokenScores, joined

RULES = ("a", "b")
SEEDS = pytest.mark.parametrize("seed", range(30))


@dataclass
class Token:
    """One token of an output: how it came there, in which round, and which rule it is credited to."""

    kind: str
    round: int
    unverified: bool = False
    rule: str | None = None
    id: int = 0

    @property
    def record(self) -> TokenRecord:
        return TokenRecord(
            self.id, "unverified" if self.unverified else self.kind, self.round, self.rule, TokenScores(q=self.id)
        )


@dataclass
class Row:
    """A row whose rounds are made up, and a recorder that is told of them."""

    generator: random.Random
    runs_ahead: bool
    recorder: RowRecorder
    tokens: list[Token] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    """How many tokens the target was to decide in each round."""

    def round(self, last: bool = False) -> None:
        """Draft, keep and commit; the last round may end anywhere."""
        draw, number = self.generator.randint, len(self.undecided)
        unverified = draw(0, 4) if self.runs_ahead else 0
        # After unverified tokens the target decides one, or none where the text has ended in them.
        n = draw(0 if last and unverified else 1, 1) if self.runs_ahead else draw(0, 5)
        accepted = draw(0, n)
        lossless = [self.generator.random() < 0.6 for _ in range(n)]
        credited = [self.generator.choice([*RULES, None]) for _ in range(n)]  # to one rule only, if to any
        kept_by = {rule: [other == rule for other in credited] for rule in RULES} if n else {}
        new = [Token("accepted_lossy", number, True, "ahead") for _ in range(unverified)]
        for i in range(accepted):
            new.append(Token("accepted" if lossless[i] else "accepted_lossy", number, rule=credited[i]))
        if not self.runs_ahead or accepted < n:  # where it runs ahead, no bonus follows
            new.append(Token("corrected" if accepted < n else "bonus", number))
        new = new[: draw(0, len(new))] if last else new
        for token in new:
            token.id = draw(0, 99)
        ids = [token.id for token in new]
        scores = tuple(TokenScores(q=x) for x in ids)
        own = {"tokens": ids[unverified:], "scores": scores[unverified:]}
        decision = RowDecision(n, accepted, complete=accepted == n, lossless=lossless, kept_by=kept_by, **own)
        ran = min(unverified, len(new))
        if self.runs_ahead:
            self.recorder.add_run(ids[:ran], "ahead", scores[:ran])
        if n or not self.runs_ahead:
            lossy = self.recorder.add(decision, len(new) - ran)
            assert ran + lossy == sum(token.kind == "accepted_lossy" for token in new)
        self.tokens += new
        self.undecided.append(n)

    def cut(self, length: int) -> None:
        self.recorder.cut(length)
        self.tokens = self.tokens[:length]

    def counted(self) -> dict[str, Any]:
        """Count by looking at every token."""
        tokens, kinds = self.tokens, Counter(token.kind for token in self.tokens)
        seen = sorted({token.round for token in tokens})
        decided = [i for i in seen if any(token.round == i and not token.unverified for token in tokens)]
        runs = [sum(token.unverified for token in tokens if token.round == i) for i in seen] if self.runs_ahead else []
        kept = [
            sum(token.kind.startswith("accepted") for token in tokens if token.round == i and not token.unverified)
            for i in decided
        ]
        return {
            "rounds": len(decided),
            "drafted": sum(token.unverified for token in tokens) + sum(self.undecided[i] for i in decided),
            "accepted": kinds["accepted"] + kinds["accepted_lossy"],
            "accepted_lossy": kinds["accepted_lossy"],
            "corrected": kinds["corrected"],
            "bonus": kinds["bonus"],
            "unverified": sum(token.unverified for token in tokens),
            "accepted_histogram": histogram(kept),
            "run_histogram": histogram(runs),
            "accepted_by": +Counter(token.rule for token in tokens if token.rule),
            "trace": tuple(token.kind for token in tokens),
            "records": tuple(token.record for token in tokens),
        }


def histogram(values: list[int]) -> tuple[int, ...]:
    return tuple(values.count(i) for i in range(max(values, default=-1) + 1))


def found(stats: LossyStats, names: Any) -> dict[str, Any]:
    """Return what was counted, without the rules that nothing is credited to."""
    return {name: getattr(stats, name) for name in names} | {"accepted_by": +Counter(stats.accepted_by)}


def finished_rows(seed: int, recorder: StatsRecorder) -> list[Row]:
    """Let all rows end, and one or another be cut back after its end."""
    generator = random.Random(seed)
    rows = [Row(generator, bool(seed % 2), own) for own in recorder.rows.values()]
    for row in rows:
        for _ in range(generator.randint(0, 6)):
            row.round()
        row.round(last=True)
        if generator.random() < 0.5:
            row.cut(generator.randint(0, len(row.tokens)))
    return rows


@SEEDS
def test_rows_are_counted_token_by_token(seed: int):
    """And a batch is the sum of its rows."""
    recorder = StatsRecorder(lossless=bool(seed % 3), rows=3)
    rows = finished_rows(seed, recorder)
    stats = recorder.finish()
    for row, own in zip(rows, stats.rows, strict=True):
        wanted = row.counted()
        assert found(own, wanted) == wanted
        assert len(row.recorder.records) == len(row.tokens)
        assert own.accepted + own.corrected + own.bonus == len(row.tokens)
        assert own.runs * own.mean_run == pytest.approx(own.unverified)
        assert own.lossless == stats.lossless == bool(seed % 3)
    assert_sum(stats, [row.counted() for row in rows])


def summed(parts: list[Any]) -> Any:
    """Add numbers, Counters, and histograms, which may be of different lengths."""
    if isinstance(parts[0], tuple):
        longest = max(map(len, parts))
        return tuple(sum(part[i] for part in parts if i < len(part)) for i in range(longest))
    return sum(parts[1:], start=parts[0])


def assert_sum(stats: LossyStats, rows: list[dict[str, Any]]) -> None:
    total = found(stats, rows[0])
    for name in ("trace", "records"):
        assert total.pop(name) == sum((row.pop(name) for row in rows), ())
    assert total == {name: summed([row[name] for row in rows]) for name in total}


@SEEDS
def test_rows_that_ran_alone_are_joined(seed: int):
    """Unlike rows that ran together they share no forwards."""
    generator, wanted, alone = random.Random(seed), [], []
    for row in range(3):
        recorder = StatsRecorder(lossless=row != 1)
        (counted,) = finished_rows(seed + 2 * row, recorder)
        recorder.target_call(generator.randint(1, 9), [0], 1)
        alone.append(recorder.finish())
        wanted.append(counted.counted())
    stats = joined(alone)
    assert_sum(stats, wanted)
    assert stats.target_calls == 3
    assert stats.target_tokens == sum(row.target_tokens for row in alone)
    for stage in ("total", "drafting", "verifying", "deciding"):
        assert stats.seconds[stage] == pytest.approx(sum(row.seconds[stage] for row in alone))
    assert not stats.lossless
    for own, before in zip(stats.rows, alone, strict=True):
        assert own.rows == ()
        assert all(getattr(own, x.name) == getattr(before, x.name) for x in fields(own) if x.name != "rows")


@SEEDS
def test_forwards_are_counted_once_and_tokens_shared_out(seed: int):
    generator, recorder = random.Random(seed), StatsRecorder(lossless=True, rows=4)
    calls, tokens = Counter(), Counter()
    own_calls, own_tokens = [Counter() for _ in range(4)], [Counter() for _ in range(4)]
    for _ in range(12):
        going_on = sorted(generator.sample(range(4), generator.randint(1, 4)))
        asking = going_on[: generator.randint(1, len(going_on))]  # others have ended in unverified tokens
        each, cost = generator.randint(1, 9), generator.randint(0, 5)
        recorder.target_call(each * len(going_on), asking, len(going_on))
        recorder.draft_work(DraftCost(cost, 2 * cost * len(going_on)), going_on)
        calls += Counter(target=1, draft=cost)
        tokens += Counter(target=each * len(going_on), draft=2 * cost * len(going_on))
        for name, rows, count, share in (("target", asking, 1, each), ("draft", going_on, cost, 2 * cost)):
            for row in rows:
                own_calls[row][name] += count
                own_tokens[row][name] += share
    stats = recorder.finish()
    assert (stats.target_calls, stats.draft_calls) == (calls["target"], calls["draft"])
    assert (stats.target_tokens, stats.draft_tokens) == (tokens["target"], tokens["draft"])
    for row, called, sent in zip(stats.rows, own_calls, own_tokens, strict=True):
        assert (row.target_calls, row.draft_calls) == (called["target"], called["draft"])
        assert (row.target_tokens, row.draft_tokens) == (sent["target"], sent["draft"])


def test_time_goes_on_until_the_run_stops_and_a_row_s_until_it_ends():
    recorder = StatsRecorder(lossless=True, rows=2)
    recorder.start()
    for row in range(2):
        sum(range(10_000))
        recorder.lap("drafting")
        recorder.rows[row].end(recorder.seconds)
    recorder.stop()
    first, second = recorder.finish(), recorder.finish()
    assert first.seconds == second.seconds
    early, late = (row.seconds for row in first.rows)
    assert 0 < early["drafting"] < late["drafting"] == first.seconds["drafting"]
    assert early["total"] < late["total"] <= first.seconds["total"]
