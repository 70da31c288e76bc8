"""What advice says: a row for each rule, the best of them, a table, and the next command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ..acceptors.base import AUTO
from ..generation.spelling import Spelling
from ..values import check_name
from .modes import EVERYTHING, DecodingMode
from .replay import Walk
from .speeds import Speeds, spread_of
from .tables import NumberTable, as_text, milliseconds, number, percent, table

MAX_NATS = 0.025
"""The largest loss of a recommended rule, in nats a token."""


@dataclass(frozen=True)
class Row:
    """What one rule brings with one draft length; in 95 % of cases, as many other prompts are within the bounds."""

    mode: str
    gamma: int | str  # a number, or auto
    kept: float  # drafted tokens per round
    tokens_per_call: float  # of the target
    times_lossless: float  # as fast as the best lossless setting
    low: float
    high: float
    times_alone: float  # as fast as the target alone
    others: float  # the share of the text's tokens that the lossless rule would have refused
    nats: float  # log p given up, per token of the text
    worst: float  # by one token, at most


@dataclass(frozen=True, eq=False)
class Replayed:
    """A mode's walks over the texts, by draft length."""

    mode: DecodingMode
    walks: Mapping[int | str, Walk]
    shown: tuple[int | str, ...] = ()  # the draft lengths that were asked for; empty for the best one


@dataclass(frozen=True, eq=False)
class Advice:
    """What rules bring on given models, texts and costs. Printed, or shown by a notebook, it is a table.

    Attributes
    ----------
    replayed
        The rules' walks, those of ``lossless`` first.
    speeds
        The texts, and the seconds of the steps of decoding.
    matches
        The share of positions at which the lossless rule keeps the draft's token.
    """

    replayed: Sequence[Replayed]
    speeds: Speeds
    matches: float

    def _fastest(self, walks: Mapping[int, Walk]) -> Walk:
        return min(walks.values(), key=lambda walk: self.speeds.seconds(walk).sum())

    @cached_property
    def _lossless(self) -> Walk:
        return self._fastest(self.replayed[0].walks)

    def row(self, one: Replayed, gamma: int | str | None = None) -> Row:
        """Return what a rule brings with drafts of ``gamma`` tokens; by default with its best ones."""
        walk = self._fastest(one.walks) if gamma is None else one.walks[gamma]
        total, rounds = self.speeds.tokens.sum(), walk.rounds.sum()
        times, low, high = self.speeds.times(walk, self._lossless)
        alone, *_ = self.speeds.times(walk, self.speeds.alone)
        return Row(
            one.mode.label, walk.gamma, float(walk.kept.sum() / rounds), float(total / rounds), times, low, high,
            alone, float(walk.others.sum() / total), float(walk.nats.sum() / total), float(walk.worst.max()),
        )  # fmt: skip

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A row for each rule with its best draft length, or with each that was asked for; the slowest rule first."""
        rows = [self.row(one, gamma) for one in self.replayed for gamma in one.shown or (None,)]
        return tuple(sorted(rows, key=lambda row: (row.mode == EVERYTHING, row.mode != "lossless", row.times_lossless)))

    @cached_property
    def front(self) -> tuple[Row, ...]:
        """The rows that gain, and than which no other loses less and gains as much."""
        rules = [row for row in self.rows if row.mode != EVERYTHING and row.times_lossless > 1]
        return tuple(
            row
            for row in rules
            if not any(
                other.nats <= row.nats
                and other.times_lossless >= row.times_lossless
                and (other.nats, other.times_lossless) != (row.nats, row.times_lossless)
                for other in rules
            )
        )

    @cached_property
    def ceiling(self) -> Row:
        """The row that keeps everything: no rule is faster."""
        one = next(one for one in self.replayed if one.mode.label == EVERYTHING)
        return self.row(one)

    def best(self, mode: str | None = None) -> Recommendation:
        """Return the fastest setting: of one rule, or of all but ``everything`` that lose at most 0.025 nats a token.

        No rule is recommended whose interval does not lie above the speed of ``lossless``, and no draft where drafting
        does not pay: the target alone is the setting then.

        Parameters
        ----------
        mode
            A rule as it stands in the table; any by default.

        Raises
        ------
        LossyValueError
            If the table has no such rule.
        """
        by_label = {one.mode.label: one for one in self.replayed}
        if mode is not None:
            check_name("mode", mode, by_label)
            row = max((row for row in self.rows if row.mode == mode), key=lambda row: row.times_lossless)
        else:
            rows = [row for row in self.rows if row.mode != EVERYTHING and row.nats <= MAX_NATS]
            row = max(rows, key=lambda row: row.times_lossless)
            row = row if row.low > 1 else self.row(self.replayed[0])
            if row.times_alone <= 1:
                return Recommendation(None, DecodingMode("plain"))
        mode = replace(by_label[row.mode].mode, gamma=row.gamma)
        return Recommendation(row, mode)

    @property
    def how_sure(self) -> str:
        """Why :meth:`best` is what it is, and how sure that is."""
        best, own = self.best(), self.speeds.times(self._lossless, self.speeds.alone)
        if best.row is None:
            why = f"drafting makes it {own:.2f} × as fast"
        elif best.row.low > 1:
            why = f"{best.row.times_lossless:.2f} ({best.row.low:.2f} to {best.row.high:.2f}) × as fast as lossless"
        else:
            why = f"{own:.2f} × the target alone, and no rule is surely faster"
        seen = f"in {len(self.speeds.repeats)} repeats {spread_of(self.speeds.repeats)[1]}"
        return why if self.speeds.steady else f"{why}. Little is sure, since {seen}: repeat it on an idle machine"

    @property
    def said(self) -> list[str]:
        """The costs, what the draft is worth, and the verdict, in sentences."""
        speeds, own = self.speeds, self._lossless
        target = ", ".join(f"{milliseconds(speeds.costs.read(n))} over {n}" for n in (1, 6, 17))
        times, low, high = speeds.times(own, speeds.alone)
        drafts = "default drafts" if own.gamma == AUTO else f"γ = {own.gamma}"
        verdict = f"With this draft no rule is more than {self.ceiling.times_lossless:.2f} × as fast as lossless."
        return [
            (
                f"A round: the target {target} tokens (ms); a drafted token {milliseconds(speeds.costs.drafted)} "
                f"(c = {speeds.costs.share:.2f})."
            ),
            (
                f"{len(speeds.tokens)} answers of the target, {int(speeds.tokens.sum()):,} tokens: lossless would keep "
                f"{percent(self.matches, 1)} % of the draft's."
            ),
            (
                f"Lossless with {drafts} is {times:.2f} × the target alone ({low:.2f} … {high:.2f})"
                + ("." if times > 1 else ": drafting does not pay here.")
            ),
            verdict,
            f"Recommended for speed: {self.best()}: {self.how_sure}.",
            "All this is worked out off-line, along the target's own texts: tokens a call, times the seconds of a call"
            + ("." if speeds.costs.clock == "wall" else ", in computing time of one thread, which is steadier here."),
        ]  # fmt: skip

    @property
    def next_step(self) -> str:
        """The modes to measure next, and why."""
        few = sorted(self.front, key=lambda row: row.times_lossless)[-3:]
        settings = [f"lossless@{self._lossless.gamma}", *(with_gamma(row.mode, row.gamma) for row in few)]
        modes = ",".join(["plain", *settings])
        return (
            "What other tokens do to answers is not known here, nor are rules that look at whole drafts or at states, "
            f"nor other drafters: measure a dozen prompts. Next: lossy-assist evaluate … --modes {modes}"
        )

    def table(self) -> NumberTable:
        """Lay out the rows."""
        front = set(self.front)
        columns: dict[str, Any] = {
            "  rule": lambda row: f"{'*' if row in front else ' '} {row.mode}",
            "γ": lambda row: str(row.gamma),
            "kept": lambda row: number(row.kept),
            "× lossless (95 %)": lambda row: f"{row.times_lossless:.2f} ({row.low:.2f} … {row.high:.2f})",
            "other\n(%)": lambda row: percent(row.others, 1),
            "nats": lambda row: f"{row.nats:.3f}",
            "worst": lambda row: f"{row.worst:.1f}",
        }
        return table(self.rows, columns, "What each rule brings")

    def __str__(self) -> str:
        return "\n".join([*self.said, as_text(self.table())])

    __repr__ = __str__

    @property
    def entry(self) -> dict[str, Any]:
        """What ``advice.json`` has."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "front": [with_gamma(row.mode, row.gamma) for row in self.front],
            "costs": self.speeds.entry, "steady": self.speeds.steady,
            "recommended": str(self.best()), "how_sure": self.how_sure,
            "answers": len(self.speeds.tokens), "tokens": int(self.speeds.tokens.sum()),
            "matches": self.matches, "ceiling": self.ceiling.times_lossless, "said": self.said,
        }  # fmt: skip


def with_gamma(mode: str, gamma: int | str) -> str:
    """Return a mode as it is spelt with a draft length."""
    return str(replace(Spelling.read(mode), gamma=gamma))


@dataclass(frozen=True)
class Recommendation:
    """A setting, and what it is expected to bring."""

    row: Row | None  # of the table; None for the target alone
    mode: DecodingMode

    def __str__(self) -> str:
        return "plain, without a draft" if self.row is None else with_gamma(self.row.mode, self.row.gamma)

    @property
    def settings(self) -> dict[str, Any]:
        """Keywords for ``generate()``, ``pipeline`` and ``GenerationConfig``; an assistant is given besides."""
        return {"do_sample": False, **{key: x for key, x in self.mode.config.items() if x != {}}}
