"""``python -m benchmarks.quality_table FOLDER``: what rules cost and gain beside ``lossless``, on the same problems.

With the costs of rounds, each answer has its predicted seconds: its own rounds, times what they cost at its length.
Without them, a round counts as much under every rule with as many drafted tokens: tokens per call of the target say how
much faster a rule decodes, and calls per answer how long an answer takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import binomtest, t

from hf_lossy_assist.drafting.draft_ends import DEFAULT_NUM_TOKENS
from hf_lossy_assist.evaluation.answers import Answer, by_mode, load_answers
from hf_lossy_assist.evaluation.modes import DecodingMode, parse_modes
from hf_lossy_assist.evaluation.quality import (
    Interval,
    interval,
    times_as_fast,
)

from . import command
from .costs import COSTS, predicted_seconds

_NAMES = {"draft": "draft alone", "plain": "target alone", "everything": "everything kept"}
_ROWS = Path(__file__).parent / "qwen-coder"
_PROMPTS = _ROWS / "prompts.json"
"""Tokens of each problem's prompt by task, for answers that do not say."""
_GREEDY = ("min_p", "regret", "typical")
_FIRST_PAGE = {  # by texts, the folder of their answers and of the advice about them, and the rules
    "GSM8K, greedily": ("gsm8k", _GREEDY),
    "HumanEval, greedily": ("humaneval", _GREEDY),
    "GSM8K, sampled": ("gsm8k-drawn", ("cactus:delta=0.1",)),
}
_ANOTHER_RUN = {"GSM8K, another run": ("gsm8k-proof", ("judge@5:threshold=0.192",))}  # without advice


@dataclass(frozen=True)
class Row:
    """A mode beside the reference, on the problems that both have answered."""

    n: int
    score: float  # the mean, in %
    points: Interval  # more than the reference, in %
    lost: float  # % of the problems whose answers are worse than the reference's
    won: float  # and better
    kept: float | None  # drafted tokens per round; None without a draft
    tokens_per_call: Interval | None  # as a multiple of the reference's, as is all that follows
    tokens: Interval
    time: Interval | None  # the predicted seconds, or the calls
    cut: float  # % of the answers that ended at the limit of their length
    speed: Interval | None = None  # predicted tokens per second, as a multiple of the best lossless setting's

    @classmethod
    def of(
        cls, own: Mapping[int, Answer], reference: Mapping[int, Answer], spent: Sequence[Mapping[int, float]] = ()
    ) -> Row:
        """Compare two modes; ``spent`` says what the answers of both took, if it is known.

        Examples
        --------
        >>> plain = {i: Answer("lossless", i, 1.0, 60, 12, 48, None, "") for i in range(2)}
        >>> topk = {i: Answer("topk", i, i, 60, 10, 50, None, "", cut=not i) for i in range(2)}
        >>> row = Row.of(topk, plain, ({0: 3.0, 1: 3.0}, {0: 4.0, 1: 4.0}))
        >>> row.points[0], row.kept, round(row.tokens_per_call[0], 3), row.time[0], row.cut
        (-50.0, 5.0, 1.2, 0.75, 50.0)
        >>> row.lost, row.won
        (50.0, 0.0)
        """
        pairs = [(own[i], reference[i]) for i in sorted(own.keys() & reference.keys())]
        counts = np.array([(x.tokens, x.rounds, y.tokens, y.rounds) for x, y in pairs], dtype=float)
        taken = np.array([[each[x.id] for each in spent] for x, _ in pairs], dtype=float)
        rounds = counts[:, 1].sum()
        drafts = bool(rounds and counts[:, 3].sum()) and any(x.accepted for x, _ in pairs)
        return cls(
            n=len(pairs),
            score=100 * sum(x.score for x, _ in pairs) / len(pairs),
            points=points(pairs),
            lost=100 * fmean(x.score < y.score for x, y in pairs),
            won=100 * fmean(x.score > y.score for x, y in pairs),
            kept=float(sum(x.accepted for x, _ in pairs) / rounds) if drafts else None,
            tokens_per_call=times_as_fast(counts[:, :2], counts[:, 2:]) if drafts else None,
            tokens=interval(counts[:, [0, 2]], log=True),
            time=interval(taken, log=True) if spent else None,
            cut=100 * sum(x.cut for x, _ in pairs) / len(pairs),
        )


def points(pairs: Sequence[tuple[Answer, Answer]]) -> Interval:
    """Return the mean difference of scores in %, with its interval."""
    apart = [own.score - reference.score for own, reference in pairs]
    _, low, high = interval([1.0, -1.0, *apart])
    return tuple(100 * value for value in (fmean(apart), max(-1.0, low), min(1.0, high)))


@dataclass(frozen=True)
class Kept:
    """The answers of a folder of ``evaluate`` by their modes' labels, and what each took."""

    modes: Mapping[str, Mapping[int, Answer]]
    reference: str
    spent: Mapping[str, Mapping[int, float]]  # predicted seconds; without costs the calls, where drafts are as long
    best: str | None = None  # the lossless setting whose answers take the fewest predicted seconds

    @classmethod
    def of(cls, folder: Path, costs: Path | None = None) -> Kept:
        """Read a folder; ``costs`` is a costs.json, by default its own if it has one."""
        plan, answers = load_answers(folder)
        modes, reference = by_mode(answers), plan["reference"]
        costs = costs or folder / COSTS
        if not costs.exists():
            gammas = {label: plan["modes"][label].get("num_assistant_tokens") for label in modes}
            same = [label for label in modes if gammas[label] == gammas[reference]]
            return cls(modes, reference, {label: {i: x.rounds for i, x in modes[label].items()} for label in same})
        lengths = json.loads(_PROMPTS.read_text(encoding="utf-8")).get(plan["task"], ())
        answers = [replace(x, prompt=lengths[x.id]) if x.prompt is None and lengths else x for x in answers]
        known = costs_of(plan, json.loads(costs.read_text(encoding="utf-8"))["modes"])
        described = modes_of(plan)
        spent = predicted_seconds(described, known, answers)
        lossless = [mode.label for mode in described if mode.rule == "lossless" and mode.label in spent]
        best = min(lossless, key=lambda label: fmean(spent[label].values()))
        return cls(modes, reference, spent, best)

    def row(self, label: str, ids: Iterable[int] | None = None) -> Row:
        """Return a mode's row, on all its problems or on some."""
        own = self.modes[label] if ids is None else {i: self.modes[label][i] for i in ids}
        others, spent = self.modes[self.reference], [self.spent.get(x) for x in (label, self.reference)]
        row = Row.of(own, others, spent if all(spent) else ())
        if self.best is None or label not in self.spent:
            return row
        common = sorted(own.keys() & self.modes[self.best].keys())
        sides = ([(self.modes[x][i].tokens, self.spent[x][i]) for i in common] for x in (label, self.best))
        return replace(row, speed=times_as_fast(*sides))


def costs_of(plan: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the costs of a plan's modes among ``known`` ones: the mode's own, or those of a mode with equal rounds.

    A round costs the same under every rule with as many drafted tokens, but for ``dropmatch`` with its dropped heads.
    """
    modes = parse_modes(",".join(known), DEFAULT_NUM_TOKENS)
    alike = {_round(label, mode.rule, mode.gamma): known[label] for label, mode in zip(known, modes, strict=True)}
    found = {}
    for label, config in plan["modes"].items():
        one = known.get(label) or alike.get(_round(label, config.get("lossy_mode"), config.get("num_assistant_tokens")))
        found |= {} if one is None else {label: one}
    return found


def _round(label: str, rule: Any, gamma: int | str | None) -> tuple[bool, bool, int | str | None]:
    return label == "draft", "dropmatch" in str(rule), gamma


def line(label: str, row: Row, unit: Sequence[str] | None = None) -> str:
    """Return a mode's line of the table; the reference's has the units of the multiples."""
    cells = [_NAMES.get(label, f"`{label}`"), str(row.n), f"{row.score:.1f}", "" if unit else signed(row.points)]
    cells.append("" if row.kept is None else f"{row.kept:.2f}")
    cells += unit or map(times, (row.speed or row.tokens_per_call, row.tokens, row.time))
    return f"| {' | '.join([*cells, f'{row.cut:.1f}'])} |"


def modes_of(plan: Mapping[str, Any]) -> list[DecodingMode]:
    """Return the modes of a manifest, as far as :func:`predicted_seconds` reads them."""
    found = plan["modes"].items()
    return [DecodingMode(name, x.get("lossy_mode"), gamma=x.get("num_assistant_tokens")) for name, x in found]


def signed(value: Interval) -> str:
    return "{:+.1f} ({:+.1f} … {:+.1f})".format(*value)


def times(value: Interval | None) -> str:
    return "" if value is None else "{:.2f} ({:.2f} … {:.2f})".format(*value)


def table(folder: Path, costs: Path | None = None) -> str:
    """Return the tables of a folder, one for each set of problems; rules are in the order of the tokens they keep.

    Rules that answered fewer problems stand in a table of their own, beside the reference on the same problems.
    """
    kept = Kept.of(folder, costs)
    known, reference = kept.modes, kept.reference
    rows = {label: kept.row(label) for label in known}
    groups: dict[frozenset[int], list[str]] = {}
    for label, own in known.items():
        if label != reference:
            groups.setdefault(frozenset(own.keys() & known[reference].keys()), []).append(label)
    speed = "tokens per call, ×" if kept.best is None else "speed, ×"
    heads = ("rule", "n", "score, %", "points", "kept", speed, "tokens, ×", "time, ×", "cut off, %")
    tables = []
    for ids, labels in sorted(groups.items(), key=lambda group: -len(group[0])):
        own = [known[reference][i] for i in sorted(ids)]
        row, length = kept.row(reference, ids), fmean(answer.tokens for answer in own)
        unit = [
            f"1 = {times(interval([(x.tokens, max(1, x.rounds)) for x in own], log=True))}",
            f"1 = {length:.0f}",
            "1",
        ]
        if kept.best is not None:
            unit = [
                "1" if kept.best == reference else times(row.speed),
                unit[1],
                f"1 = {fmean(kept.spent[reference][i] for i in ids):.1f} s",
            ]
        order = sorted(labels, key=lambda label: (rows[label].kept is not None, rows[label].kept or 0))
        first = sum(rows[label].kept is None for label in labels)  # what has no draft stands above the reference
        lines = [line(label, rows[label]) for label in order]
        lines.insert(first, line(reference, row, unit))
        tables.append("\n".join([f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines]))
    return "\n\n".join(tables)


def first_page() -> str:
    """Return README's table: what rules cost and gain with drafts of five tokens. Bold is what Holm's test shows."""
    shown = _FIRST_PAGE | _ANOTHER_RUN
    texts = {name: Kept.of(_ROWS / folder) for name, (folder, _) in shown.items()}
    rows = {(name, rule): texts[name].row(rule) for name, (_, rules) in shown.items() for rule in rules}
    apart = holm([p_of_points(texts[name], rule) for name, rule in rows])
    faster = holm([p_of_ratio(row.time, row.n) for row in rows.values()])
    heads = ("texts", "rule", "points", "lost / won", "time of an answer, ×")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for ((name, rule), row), *ps in zip(rows.items(), apart, faster, strict=True):
        first = f"{name}, {row.n} problems" if rule == shown[name][1][0] else ""
        gain, time = (
            f"**{x}**" if p < 0.05 else x for x, p in zip((signed(row.points), times(row.time)), ps, strict=True)
        )
        lines.append(f"| {' | '.join([first, f'`{rule}`', gain, f'{row.lost:.1f} / {row.won:.1f}', time])} |")
    return "\n".join(lines)


def p_of_points(kept: Kept, rule: str) -> float:
    """Return McNemar's exact p that a rule and the reference have equally many right answers.

    Examples
    --------
    >>> answers = {x: {i: Answer(x, i, float(x == "a"), 9, 3, 6, None, "") for i in range(6)} for x in "ab"}
    >>> p_of_points(Kept(answers, "a", {}), "b") == 2 * 0.5**6
    True
    """
    own, others = kept.modes[rule], kept.modes[kept.reference]
    apart = [own[i].score - others[i].score for i in own.keys() & others.keys()]
    better, worse = sum(d > 0 for d in apart), sum(d < 0 for d in apart)
    return float(binomtest(better, better + worse).pvalue) if better + worse else 1.0


def p_of_ratio(ratio: Interval, n: int) -> float:
    """Return the two-sided p that a ratio of ``n`` problems, with its interval, is 1."""
    estimate, low, high = map(math.log, ratio)
    error = (high - low) / (2 * t.ppf(0.975, n - 1))
    return 2 * float(t.sf(abs(estimate) / error, n - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values that allow for all comparisons made, by Holm's method.

    Examples
    --------
    >>> holm([0.03, 0.01, 0.5])
    [0.06, 0.03, 0.5]
    """
    order = np.argsort(ps)
    steps = np.maximum.accumulate([(len(ps) - i) * ps[one] for i, one in enumerate(order)])
    return np.minimum(1.0, steps[np.argsort(order)]).tolist()


def predictions() -> str:
    """Return what ``advise`` said from 12 problems beside what the others of the same texts have shown."""
    heads = ("texts", "rule", "predicted, ×", "seen, ×")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for texts, (name, rules) in _FIRST_PAGE.items():
        kept = Kept.of(_ROWS / name)
        said = json.loads((_ROWS / "advice" / f"{name}.json").read_text(encoding="utf-8"))
        by_mode = {row["mode"]: row["tokens_per_call"] for row in said["rows"] if row["gamma"] == DEFAULT_NUM_TOKENS}
        first = texts
        for rule in rules:
            others = [i for i in kept.modes[rule] if i >= said["answers"]]
            seen = times(kept.row(rule, others).tokens_per_call)
            lines.append(f"| {first} | `{rule}` | {by_mode[rule] / by_mode['lossless']:.2f} | {seen} |")
            first = ""
    return "\n".join(lines)


def main(
    folder: Annotated[
        Path | None,
        typer.Argument(help="What `evaluate` wrote; without, what README shows."),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="A costs.json of `evaluate` on this machine; the folder's own by default.")
    ] = None,
) -> None:
    """Print a table of scores, tokens and time, with 95 % intervals, beside the reference on the same problems.

    Gains are multiples of the reference's, with intervals over problems.
    """
    typer.echo(f"{first_page()}\n\n{predictions()}" if folder is None else table(folder, costs))


app = command(main)
if __name__ == "__main__":
    app()
