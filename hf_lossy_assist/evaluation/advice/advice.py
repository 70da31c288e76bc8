"""What advice says: a row for each rule, the best of them, a table, and the next command."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...acceptors.base import AUTO
from ...errors import LossyValueError, nearest
from ...generation.spelling import Spelling
from ...values import Rule, is_number
from ..costs import Costs
from ..modes import EVERYTHING, DecodingMode
from ..quality import Interval, times_as_fast
from ..tables import NumberTable, as_text, milliseconds, number, percent, table
from .replay import Walk

WANTED = 1.25
"""The speed, as a multiple of lossless's, for which advice says how much a rule has to keep."""
DRAFT_COST = Rule("a number above 0, such as 0.05", lambda x: is_number(x) and x > 0)


@dataclass(frozen=True)
class Row:
    """What one rule brings with one draft length; intervals are of 95 %, over prompts."""

    mode: str
    gamma: int | str  # a number, or auto
    kept: float  # drafted tokens per round
    tokens_per_call: float  # of the target
    times_lossless: float  # as fast as the best lossless setting
    low: float
    high: float
    others: float  # the share of the text's tokens that the lossless rule would have refused
    nats: float | None = None  # log p given up, per token of the text; greedily
    worst: float | None = None  # by one token, at most
    tv: float | None = None  # between p and what the rule emits where it decides, in the mean; when sampling
    kl: float | None = None
    outside: float | None = None  # the mass that it emits where p is 0

    @property
    def loss(self) -> float | None:
        """What the front compares with the speed; None where it is not known."""
        return self.kl if self.nats is None else self.nats


@dataclass(frozen=True, eq=False)
class Replayed:
    """A mode's walks over the texts, by draft length."""

    mode: DecodingMode
    walks: Mapping[int | str, Walk]
    shown: tuple[int | str, ...] = ()  # the draft lengths that were asked for; empty for the best one
    losses: Mapping[str, float] = field(default_factory=dict)  # ``tv``, ``kl`` and ``outside``, when sampling


@dataclass(frozen=True, eq=False)
class Advice:
    """What rules bring on given models, texts and costs. Printed, or shown by a notebook, it is a table.

    Attributes
    ----------
    replayed
        The rules' walks, those of ``lossless`` first.
    tokens
        ``(B,)`` tokens of the texts.
    length
        Tokens of a prompt and half its text, in the mean.
    costs
        Seconds of the steps of decoding.
    matches
        The share of positions at which the lossless rule keeps the draft's token.
    keeping
        Gives the walks of a rule that keeps a share of the tokens that ``lossless`` refuses.
    decoding
        Keywords of ``generate()`` that say how tokens are chosen.
    seen
        The setting that ran on some of the prompts, and its tokens per call, predicted and seen; empty if none ran.
    """

    replayed: Sequence[Replayed]
    tokens: np.ndarray
    length: float
    costs: Costs
    matches: float
    keeping: Callable[[float], Mapping[int, Walk]]
    decoding: Mapping[str, Any]
    seen: Mapping[str, Any] = field(default_factory=dict)

    def with_draft_cost(self, share: float) -> Advice:
        """Return the advice for other hardware, on which a drafted token takes ``share`` of a target's token."""
        DRAFT_COST.check("draft_cost", share)
        drafted = tuple(share * self.costs.read(1, length) for length in self.costs.lengths)
        return replace(self, costs=replace(self.costs, drafted=drafted))

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn."""
        return self.decoding["do_sample"]

    @property
    def draft_cost(self) -> float:
        """A drafted token's share of a target's token."""
        return self.costs.token(self.length) / self.costs.read(1, self.length)

    def seconds(self, walk: Walk) -> np.ndarray:
        """Return ``(B,)`` the seconds of the texts, without their prompts."""
        return walk.sizes @ [self.costs.round(size, self.length) for size in range(walk.sizes.shape[1])]

    def _fastest(self, walks: Mapping[int, Walk]) -> Walk:
        return min(walks.values(), key=lambda walk: self.seconds(walk).sum())

    def needed(self, times: float = WANTED) -> float | None:
        """Return the share of the tokens that lossless refuses that a rule must keep to be so many times as fast.

        None if keeping all of them is not enough.
        """
        wanted, low, high = self._lossless.sum() / times, 0.0, 1.0
        if self.seconds(self._fastest(self.keeping(high))).sum() > wanted:
            return None
        for _ in range(8):
            middle = (low + high) / 2
            enough = self.seconds(self._fastest(self.keeping(middle))).sum() <= wanted
            low, high = (low, middle) if enough else (middle, high)
        return high

    @cached_property
    def _lossless(self) -> np.ndarray:
        return self.seconds(self._fastest(self.replayed[0].walks))

    def _times(self, seconds: np.ndarray, base: np.ndarray) -> Interval:
        """Return how many times as fast as ``base`` is ``seconds``, with the interval."""
        return times_as_fast(*(list(zip(self.tokens, each, strict=True)) for each in (seconds, base)))

    def row(self, one: Replayed, gamma: int | str | None = None) -> Row:
        """Return what a rule brings with drafts of ``gamma`` tokens; by default with its best ones."""
        walk = self._fastest(one.walks) if gamma is None else one.walks[gamma]
        times, low, high = self._times(self.seconds(walk), self._lossless)
        total, rounds = self.tokens.sum(), walk.rounds.sum()
        greedily = {"nats": float(walk.nats.sum() / total), "worst": float(walk.worst.max())}
        return Row(
            one.mode.label, walk.gamma, float(walk.kept.sum() / rounds), float(total / rounds), times, low, high,
            float(walk.others.sum() / total), **(one.losses if self.sampled else greedily),
        )  # fmt: skip

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A row for each rule with its best draft length, or with each that was asked for; the slowest rule first."""
        rows = [self.row(one, gamma) for one in self.replayed for gamma in one.shown or (None,)]
        return tuple(sorted(rows, key=lambda row: (row.mode == EVERYTHING, row.mode != "lossless", row.times_lossless)))

    @cached_property
    def front(self) -> tuple[Row, ...]:
        """The rows that gain, and than which no other loses less and gains as much."""
        rules = [row for row in self.rows if row.mode != EVERYTHING and row.times_lossless > 1 and row.loss is not None]
        return tuple(
            row
            for row in rules
            if not any(
                other.loss <= row.loss
                and other.times_lossless >= row.times_lossless
                and (other.loss, other.times_lossless) != (row.loss, row.times_lossless)
                for other in rules
            )
        )

    @cached_property
    def ceiling(self) -> Row:
        """The row that keeps everything: no rule is faster."""
        one = next(one for one in self.replayed if one.mode.label == EVERYTHING)
        return self.row(one)

    def best(self, mode: str | None = None, *, max_nats: float = 0.025, max_tv: float = 0.05) -> Recommendation:
        """Return the fastest setting: of one rule, or of all but ``everything`` whose loss is within a bound.

        Parameters
        ----------
        mode
            A rule as it stands in the table; any by default.
        max_nats
            The most log p that a token may give up in the mean, in greedy decoding.
        max_tv
            The largest mean total variation, when sampling.

        Raises
        ------
        LossyValueError
            If the table has no such rule.
        """
        by_label = {one.mode.label: one for one in self.replayed}
        if mode is not None and mode not in by_label:
            raise LossyValueError(f"`mode` has to be one of {list(by_label)}, but is {mode!r}{nearest(mode, by_label)}")
        measure, bound = ("tv", max_tv) if self.sampled else ("nats", max_nats)
        known = [row for row in self.rows if row.mode != EVERYTHING and getattr(row, measure) is not None]
        within = [row for row in known if getattr(row, measure) <= bound]
        fine = [row for row in self.rows if row.mode == mode] if mode else within
        row = max(fine, key=lambda row: row.times_lossless)
        if mode is None and row.low <= 1:
            row = self.row(self.replayed[0])
        return Recommendation(row, replace(by_label[row.mode].mode, gamma=row.gamma), self.decoding)

    @property
    def said(self) -> list[str]:
        """The costs, what the draft is worth, and the verdict, in sentences."""
        costs, length = self.costs, self.length
        target = ", ".join(f"{milliseconds(costs.read(n, length))} over {n}" for n in (1, 6, 17))
        alone, own = self.tokens * costs.read(1, length), self._fastest(self.replayed[0].walks)
        times, low, high = self._times(self._lossless, alone)
        share, drafts = self.needed(), "default drafts" if own.gamma == AUTO else f"γ = {own.gamma}"
        unsteady = costs.read(1, length) > 1.2 * costs.read(6, length)  # more work can't take less time
        warning = ["The times are not steady, so speeds are wrong: repeat it on an idle machine, with --tune."]
        verdict = f"With this draft no rule is more than {self.ceiling.times_lossless:.2f} × as fast as lossless."
        if share is not None:
            verdict += f" To be {WANTED} ×, a rule has to keep {percent(share)} % of the tokens that differ."
        return [
            *(warning if unsteady else []),
            (
                f"A round: the target {target} tokens (ms); a drafted token {milliseconds(costs.token(length))} "
                f"(c = {self.draft_cost:.2f})."
            ),
            (
                f"{len(self.tokens)} answers of the target, {int(self.tokens.sum()):,} tokens: lossless would keep "
                f"{percent(self.matches, 1)} % of the draft's."
            ),
            (
                f"Lossless with {drafts} is {times:.2f} × the target alone ({low:.2f} … {high:.2f})"
                + ("." if times > 1 else ": drafting does not pay here.")
            ),
            verdict,
            *(
                f"{seen['setting']} ran on {seen['prompts']} of the prompts: {seen['tokens_per_call']:.2f} tokens per "
                f"call, predicted {seen['predicted']:.2f}."
                for seen in [self.seen]
                if seen
            ),
        ]

    @property
    def next_step(self) -> str:
        """The modes to measure next, and why."""
        few = sorted(self.front, key=lambda row: row.times_lossless)[-3:]
        own = self._fastest(self.replayed[0].walks)
        modes = ",".join(["plain", f"lossless@{own.gamma}", *(with_gamma(row.mode, row.gamma) for row in few)])
        return f"What other tokens do to answers is not measured here. Next: lossy-assist evaluate … --modes {modes}"

    def table(self) -> NumberTable:
        """Lay out the rows."""
        front = set(self.front)
        columns: dict[str, Any] = {
            "  rule": lambda row: f"{'*' if row in front else ' '} {row.mode}",
            "γ": lambda row: str(row.gamma),
            "kept": lambda row: number(row.kept),
            "× lossless (95 %)": lambda row: f"{row.times_lossless:.2f} ({row.low:.2f} … {row.high:.2f})",
            "other\n(%)": lambda row: percent(row.others, 1),
        }
        if self.sampled:
            columns |= {name.upper(): lambda row, name=name: _three(getattr(row, name)) for name in ("tv", "kl")}
            columns["out-\nside\n(%)"] = lambda row: percent(row.outside, 1)
        else:
            columns |= {"nats": lambda row: _three(row.nats), "worst": lambda row: f"{row.worst:.1f}"}
        return table(self.rows, columns, "What each rule brings")

    def __str__(self) -> str:
        return "\n".join([*self.said, as_text(self.table())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        screen = Console(file=io.StringIO(), record=True, width=100)
        screen.print("\n".join(self.said), self.table(), highlight=False)
        return screen.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    @property
    def entry(self) -> dict[str, Any]:
        """What ``advice.json`` has."""
        other = ("nats", "worst") if self.sampled else ("tv", "kl", "outside")
        return {
            "rows": [{key: x for key, x in asdict(row).items() if key not in other} for row in self.rows],
            "front": [with_gamma(row.mode, row.gamma) for row in self.front],
            "costs": {
                "draft": self.costs.token(self.length), "draft_cost": self.draft_cost, "length": self.length,
                "target": {str(n): self.costs.read(n, self.length) for n in sorted(self.costs.target)},
            },
            "decoding": dict(self.decoding), "answers": len(self.tokens), "tokens": int(self.tokens.sum()),
            "matches": self.matches, "seen": dict(self.seen), "ceiling": self.ceiling.times_lossless, "said": self.said,
        }  # fmt: skip


def with_gamma(mode: str, gamma: int | str) -> str:
    """Return a mode as it is spelt with a draft length."""
    return str(replace(Spelling.read(mode), gamma=gamma))


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Recommendation:
    """A setting, and what it is expected to bring."""

    row: Row
    mode: DecodingMode
    decoding: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Keywords for ``generate()``, ``pipeline`` and ``GenerationConfig``; an assistant is given besides."""
        return {**self.decoding, **{key: x for key, x in self.mode.config.items() if x != {}}}


PLOTTED_COSTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""The costs of a drafted token, as shares of a token of the target, that are drawn."""


def draw(advice: Advice, path: Path) -> None:
    """Draw the advice into a PNG file with three parts; the third shows each rule at its best draft length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    loss, lengths, costs = figure.subplots(1, 3)
    known = [row for row in advice.rows if row.mode != EVERYTHING and row.loss is not None]
    for row in known:
        below, above = row.times_lossless - row.low, row.high - row.times_lossless
        loss.errorbar(row.loss, row.times_lossless, [[below], [above]], fmt="o", capsize=2, elinewidth=0.6)
        loss.annotate(f" {row.mode}@{row.gamma}", (row.loss, row.times_lossless), fontsize=7)
    front = sorted(advice.front, key=lambda row: row.loss)
    loss.plot([row.loss for row in front], [row.times_lossless for row in front], color="black", linewidth=0.8)
    loss.set(xlabel="KL to the target, per position" if advice.sampled else "nats given up, per token")
    others = [advice.with_draft_cost(share) for share in PLOTTED_COSTS]
    for one in advice.replayed:
        rows = [advice.row(one, gamma) for gamma in sorted(one.walks.keys() - {"auto"})]
        gammas = [row.gamma for row in rows]
        (line,) = lengths.plot(gammas, [row.times_lossless for row in rows], label=one.mode.label)
        lengths.fill_between(gammas, *np.array([[x.low, x.high] for x in rows]).T, alpha=0.1, color=line.get_color())
        costs.plot(PLOTTED_COSTS, [other.row(one).times_lossless for other in others], color=line.get_color())
    lengths.set(xlabel="drafted tokens per round")
    costs.axvline(advice.draft_cost, color="black", linewidth=0.8, linestyle="--")
    costs.set(xlabel="a drafted token's time / a token's of the target (dashed: here)", xscale="log")
    for axes in (loss, lengths, costs):
        axes.set_ylabel("× the best lossless setting")
        axes.grid(alpha=0.3)
    figure.legend(*lengths.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=110)
