"""What rules cost and gain in kept answers, beside a reference's on the same problems.

Multiples are of the reference's, and intervals are of 95 %, over problems.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from hf_lossy_assist import LossyValueError

from . import headroom
from .tables import Interval, Row, holm, interval, markdown, p_of, points, ratio, rows, signed, times

_NAMES = {"draft": "draft alone", "plain": "target alone", "everything": "everything kept"}


def said(mode: str) -> str:
    return _NAMES.get(mode, f"`{mode}`")


@dataclass(frozen=True)
class Answers:
    """The answers of one run, by mode and problem.

    ``spent`` of an answer is its seconds by the costs of rounds, where they are known, else its rounds where drafts are
    as long as the reference's, else None.
    """

    modes: Mapping[str, Mapping[int, Row]]
    plan: Mapping[str, Row]
    reference: str
    best: str | None  # the lossless setting whose answers take the fewest predicted seconds

    @classmethod
    def of(cls, configuration: str, run: str | None = None) -> Answers:
        """Read a configuration, or one run of it."""
        plan = {x["mode"]: x for x in rows("modes") if (x["configuration"], x["run"]) == (configuration, run)}
        if not plan:
            known = {x["configuration"] + (f"/{x['run']}" if x["run"] else "") for x in rows("modes")}
            given = configuration if run is None else f"{configuration}/{run}"
            raise LossyValueError(f"`configurations` has to be some of {sorted(known)}, but one is {given!r}")
        reference = next(mode for mode, x in plan.items() if x["reference"])
        costs = {mode for mode, x in plan.items() if x["cost_lengths"]}
        alike = {mode for mode, x in plan.items() if not costs and x["gamma"] == plan[reference]["gamma"]}
        modes: dict[str, dict[int, Row]] = {}
        for x in rows(configuration):
            if x.get("run") == run:
                spent = x["rounds"] if x["mode"] in alike else x.get("spent")
                modes.setdefault(x["mode"], {})[x["id"]] = {**x, "spent": spent}
        lossless = [mode for mode in modes if mode in costs and plan[mode]["rule"] == "lossless"]
        best = min(lossless, key=lambda mode: fmean(x["spent"] for x in modes[mode].values()), default=None)
        return cls(modes, plan, reference, best)

    def pairs(self, mode: str, other: str | None = None) -> list[tuple[Row, Row]]:
        """Return the answers of a mode beside those of another one, by default of the reference."""
        own, others = self.modes[mode], self.modes[other or self.reference]
        return [(own[i], others[i]) for i in sorted(own.keys() & others.keys())]

    def of_both(self, mode: str, other: str | None, names: Sequence[str]) -> np.ndarray:
        """Return quantities ``(n, 2k)`` of a mode and of another one, on the problems of both."""
        return np.array([[x[name] for x in both for name in names] for both in self.pairs(mode, other)], dtype=float)

    def rate(self, mode: str) -> float:
        """Return the tokens per second of timed answers."""
        own = self.modes[mode].values()
        return sum(x["tokens"] for x in own) / sum(x["seconds"] for x in own)

    def speed(self, mode: str, other: str = "plain") -> str:
        """Return the tokens per second of timed answers beside another mode's."""
        return "1" if mode == other else times(self.times(mode, "tokens", "seconds", other))

    def points(self, mode: str) -> Interval:
        return points(*self.of_both(mode, None, ("score",)).T)

    def times(self, mode: str, what: str, per: str | None = None, other: str | None = None) -> Interval | None:
        """Return a quantity, per another one, as a multiple of another mode's; None where it is not known.

        Texts that are timed together count as one.
        """
        counts = self.of_both(mode, other, (what,) if per is None else (what, per))
        if np.isnan(counts).any():
            return None
        if per == "seconds":
            counts = np.add.reduceat(counts, range(0, len(counts), self.plan[mode]["batch_size"]))
        return interval(counts, ratio if per is None else headroom.right_price, log=True)

    def line(self, mode: str, ids: frozenset[int]) -> tuple[float | None, list[str]]:
        """Return the tokens kept per round, and a mode's cells of the quality table."""
        own, unit = [self.modes[mode][i] for i in sorted(ids)], mode == self.reference
        rounds, drafts = sum(x["rounds"] for x in own), any(x["accepted"] for x in own)
        kept = sum(x["accepted"] for x in own) / rounds if drafts and rounds else None
        speed, gain = "", "" if unit else signed(self.points(mode))
        if self.best is not None and own[0]["spent"] is not None:
            speed = "1" if mode == self.best else times(self.times(mode, "tokens", "spent", self.best))
        elif unit:
            counts = np.array([(x["tokens"], max(1, x["rounds"])) for x in own], dtype=float)
            speed = f"1 = {times(interval(counts, ratio, log=True))}"
        elif kept is not None and any(x["rounds"] for x in self.modes[self.reference].values()):
            speed = times(self.times(mode, "tokens", "rounds"))
        gains = [times(self.times(mode, what)) for what in ("tokens", "spent")]
        if unit:
            time = f"1 = {fmean(x['spent'] for x in own):.1f} s" if self.best else "1"
            gains = [f"1 = {fmean(x['tokens'] for x in own):.0f}", time]
        score, cut = (f"{100 * fmean(x[name] for x in own):.1f}" for name in ("score", "cut"))
        return kept, [said(mode), str(len(own)), score, gain, "" if kept is None else f"{kept:.2f}", speed, *gains, cut]


def quality(configuration: str, run: str | None = None) -> str:
    """Return the tables of a run, one for each set of problems; rules are in the order of the tokens they keep."""
    answers = Answers.of(configuration, run)
    groups: dict[frozenset[int], list[str]] = {}
    for mode, own in answers.modes.items():
        if mode != answers.reference:
            groups.setdefault(frozenset(own.keys() & answers.modes[answers.reference].keys()), []).append(mode)
    speed = "tokens per call, ×" if answers.best is None else "speed, ×"
    heads = ("rule", "n", "score, %", "points", "kept", speed, "tokens, ×", "time, ×", "cut off, %")
    tables = []
    for ids, modes in sorted(groups.items(), key=lambda group: -len(group[0])):
        lines = sorted((answers.line(mode, ids) for mode in modes), key=lambda x: (x[0] is not None, x[0] or 0))
        # What has no draft stands above the reference.
        lines.insert(sum(kept is None for kept, _ in lines), answers.line(answers.reference, ids))
        tables.append(markdown(heads, [cells for _, cells in lines]))
    return "\n\n".join(tables)


_GREEDY = ("min_p", "regret", "typical")
_FIRST = {  # by texts: the configuration, and the rules
    "GSM8K, greedily": ("gsm8k", (*_GREEDY, "judge:threshold=0.263591")),
    "HumanEval, greedily": ("humaneval", _GREEDY),
    "GSM8K, sampled": ("gsm8k-drawn", ("cactus:delta=0.1",)),
    "GSM8K, another run": ("gsm8k-proof", ("judge@5:threshold=0.192",)),
}


def first_page() -> str:
    """Return what rules cost and gain with drafts of five tokens. Bold is what Holm's test shows."""
    found = []
    for name, (configuration, rules) in _FIRST.items():
        answers = Answers.of(configuration)
        for rule in rules:
            apart = [a["score"] - b["score"] for a, b in answers.pairs(rule)]
            won, lost, n = sum(x > 0 for x in apart), sum(x < 0 for x in apart), len(apart)
            first = f"{name}, {n} problems" if rule == rules[0] else ""
            time, price = answers.times(rule, "rounds"), answers.times(rule, "rounds", "score")
            p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
            found.append((first, rule, answers.points(rule), time, price, p, p_of(time, n), p_of(price, n)))
    tests = list(zip(*(holm(ps) for ps in list(zip(*found, strict=True))[-3:]), strict=True))
    lines = []
    for (first, rule, gain, *multiples, _, _, _), ps in zip(found, tests, strict=True):
        cells = (signed(gain), *map(times, multiples))
        lines.append((first, f"`{rule}`", *(f"**{x}**" if p < 0.05 else x for x, p in zip(cells, ps, strict=True))))
    return markdown(("texts", "rule", "points", "time of an answer, ×", "time of a right answer, ×"), lines)


_LONG = ("min_p@16", "regret@16", "topk@16", "typical@16", "everything@16")


def long_drafts() -> Answers:
    """Return the answers of rules with drafts of 16 tokens, beside ``lossless`` with as many."""
    return replace(Answers.of("humaneval-long"), reference="lossless@16")


def as_long() -> str:
    answers, lines = long_drafts(), []
    for mode in _LONG:
        time, price = answers.times(mode, "rounds"), answers.times(mode, "rounds", "score")
        lines.append((said(mode), len(answers.modes[mode]), signed(answers.points(mode)), times(time), times(price)))
    return markdown(("rule", "n", "points", "time of an answer, ×", "time of a right answer, ×"), lines)


def draw_rules(path: Path) -> None:
    """Draw the points of each rule over its time of an answer, both beside ``lossless`` with drafts as long."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="0.85", linewidth=1)
    axes.axvline(1, color="0.85", linewidth=1)
    axes.annotate("lossless", (1, 0), (4, 4), textcoords="offset points", color="0.4", fontsize=8)
    runs = {name: (Answers.of(configuration), rules) for name, (configuration, rules) in _FIRST.items()}
    for name, (answers, rules) in (runs | {"HumanEval, 16 drafted tokens": (long_drafts(), _LONG)}).items():
        values = [(answers.times(rule, "rounds"), answers.points(rule)) for rule in rules]
        (x, *across), (y, *up) = (np.array(value).T for value in zip(*values, strict=True))
        bars = {"xerr": np.abs(np.array(across) - x), "yerr": np.abs(np.array(up) - y)}
        axes.errorbar(
            x, y, **bars, fmt="o", markersize=5, elinewidth=0.5, label=f"{name}, {len(answers.pairs(rules[0]))}"
        )
        for rule, *place in zip(rules, x, y, strict=True):
            axes.annotate(re.split("[@:]", rule)[0], place, (4, 4), textcoords="offset points", fontsize=8)
    axes.set(
        xlabel="time per answer / that of lossless (lower is faster)",
        ylabel="points minus those of lossless (lower is worse)",
    )
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=100)
