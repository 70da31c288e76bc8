"""The result of an evaluation: scores, lengths and speeds of every mode, also by category, as tables and a plot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .answers import Answer, AnswerStore, by_mode
from .quality import Interval, interval
from .scores import ModeScore, mode_scores
from .tables import (
    Column,
    NumberTable,
    as_text,
    figure,
    number,
    percent,
    table,
)


@dataclass(frozen=True)
class Kind:
    """A mode's results on the prompts of one category."""

    category: str
    row: ModeScore
    acceptance: Interval  # tokens per call of the target, with an interval over the prompts


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """The answers of an evaluation, and every mode's score by its label; prints as a table of scores."""

    answers: Sequence[Answer]
    modes: Mapping[str, ModeScore]
    reference: str  # the label that all are compared with
    kinds: Sequence[Kind] = ()  # the same by the prompts' categories, if the task has several
    is_whole: bool = True  # whether every mode has answered every problem

    @classmethod
    def of(
        cls, answers: Sequence[Answer], reference: str, categories: Sequence[str] = (),
        baselines: Mapping[str, Collection[str]] = MappingProxyType({}), batch_size: int = 1,
    ) -> EvaluationResult:  # fmt: skip
        """Sum up answers to problems of the given ``categories``; the rest is as for :func:`.scores.mode_scores`."""
        scores = {row.label: row for row in mode_scores(answers, reference, baselines, batch_size)}
        kinds = []
        for category in dict.fromkeys(categories) if len({*categories}) > 1 else ():
            own = [answer for answer in answers if categories[answer.id] == category]
            lengths = {
                label: interval([(one.tokens, max(1, one.rounds)) for one in x.values()], log=True)
                for label, x in by_mode(own).items()
            }
            rows = mode_scores(own, reference, baselines, batch_size)
            kinds += [Kind(category, row, lengths[row.label]) for row in rows]
        return cls(answers, scores, reference, kinds)

    def __repr__(self) -> str:
        return "\n\n".join(map(as_text, self.tables))

    @property
    def tables(self) -> list[NumberTable]:
        """Scores, lengths and speeds, and all by category; those that nothing is known for are left out."""
        rows = list(self.modes.values())
        timed = [row for row in rows if row.speed is not None]
        made = [
            score_table(rows, self.reference),
            length_table(rows, self.reference),
            speed_table(timed) if timed else None,
            kind_table(self.kinds) if self.kinds else None,
        ]
        return [each for each in made if each is not None]

    def save(self, store: AnswerStore) -> None:
        """Write ``summary.json`` with an entry per mode, ``plot.png``, and perhaps ``categories.json``."""
        store.write("summary.json", {label: row.entry for label, row in self.modes.items()})
        if self.kinds:
            store.write("categories.json", [asdict(kind) for kind in self.kinds])
        plot_scores(list(self.modes.values()), store.folder / "plot.png")


Rows = Sequence[ModeScore]

_BASELINES = {"plain": "× plain", "stock": "× best\nstock", "lossless": "× best\nlossless"}


def points(row: ModeScore) -> str:
    """Return a mode's difference from the reference with its interval; nothing for the reference itself."""
    values = Interval(*(100 * value for value in (row.difference, row.low, row.high)))
    return f"{values:+.1f}" if any(values) else ""


def score_table(rows: Rows, reference: str) -> NumberTable:
    columns: dict[str, Column] = {"mode": lambda row: row.label, "n": lambda row: str(row.n)}
    if scored := any(row.score is not None for row in rows):
        columns |= {
            "score\n(%)": lambda row: percent(row.score, 1),
            f"points against\n{reference} (95 %)": points,
        }
    columns |= {
        "mean\nkept": lambda row: number(row.mean_accepted),
        "tokens/\nround": lambda row: number(row.tokens_per_round),
        "calls/\n100": lambda row: f"{row.target_calls_per_100_tokens:.1f}",
        "tokens\n/s": lambda row: "" if row.tokens_per_second is None else figure(row.tokens_per_second),
    }
    title = "Scores; m" if scored else "M"
    return table(rows, columns, f"{title}ean kept: drafted tokens per round; calls of the target per 100 tokens")


def length_table(rows: Rows, reference: str) -> NumberTable:
    """Lay out how long answers are and take: a rule that writes more tokens a second may need more of them."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "tokens/\nanswer": lambda row: f"{row.tokens_per_answer:.1f}",
        f"against\n{reference} (95 %)": lambda row: "" if row.tokens_apart is None else f"{row.tokens_apart:+.1f}",
        "cut off\n(%)": lambda row: percent(row.cut_off, 1),
        "seconds/\nanswer": lambda row: "" if row.seconds_per_answer is None else figure(row.seconds_per_answer),
        "against it\n(95 %)": lambda row: "" if row.seconds_apart is None else f"{row.seconds_apart:+.2f}",
        "same\ntexts": lambda row: str(row.same_texts),
    }
    return table(rows, columns, "Length and time of answers; cut off: ended at the limit of their length")


def speed_table(rows: Rows) -> NumberTable:
    """Lay out speeds beside the target alone, the fastest of transformers' own modes, and of the lossless ones."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "tokens/s": lambda row: figure(row.tokens_per_second),
    }
    if any(row.speed.least < row.speed.most for row in rows):
        columns["least–largest"] = lambda row: "–".join(map(figure, (row.speed.least, row.speed.most)))
    for name in rows[0].speed.times:
        columns[_BASELINES[name]] = lambda row, name=name: str(row.speed.times.get(name) or "")
    return table(rows, columns, "Speed; ×: tokens per second, with 95 % intervals over the calls")


def kind_table(kinds: Sequence[Any]) -> NumberTable:
    """Lay out acceptance lengths and speeds by category."""
    columns: dict[str, Column] = {
        "category": lambda kind: kind.category,
        "mode": lambda kind: kind.row.label,
        "n": lambda kind: str(kind.row.n),
        "tokens/call\n(95 %)": lambda kind: str(kind.acceptance),
        "tokens\n/s": lambda kind: "" if kind.row.tokens_per_second is None else figure(kind.row.tokens_per_second),
    }
    return table(kinds, columns, "By category: tokens per call of the target, and speed")


def plot_scores(rows: Rows, path: Path) -> None:
    """Draw score over speed; drafted tokens kept per round over tokens per round, where that is not known."""
    from matplotlib.figure import Figure

    timed = all(row.speed is not None for row in rows)
    scored = all(row.score is not None for row in rows)
    drawn = Figure(figsize=(9, 5), layout="constrained")
    axes = drawn.subplots()
    for row, marker in zip(rows, cycle("osD^vP*X")):
        x = (row.tokens_per_second, row.speed.least, row.speed.most) if timed else (row.tokens_per_round,) * 3
        y = (row.mean_accepted,) * 3
        if scored:
            y = tuple(100 * (row.score - row.difference + end) for end in (row.difference, row.low, row.high))
        # A single call's speed is its least and its most, but for how its seconds were added up.
        bars = {
            f"{name}err": [[max(0.0, value - low)], [max(0.0, high - value)]]
            for name, (value, low, high) in (("x", x), ("y", y))
        }
        axes.errorbar(x[0], y[0], **bars, fmt=marker, ecolor="0.75", capsize=2, elinewidth=0.6, label=row.label)
    axes.set(
        xlabel="tokens per second" if timed else "tokens per round",
        ylabel="score (%; bars: 95 % interval of the difference)" if scored else "drafted tokens kept per round",
    )
    if scored:
        axes.set_ylim(top=min(101.0, axes.get_ylim()[1]))
    drawn.legend(loc="outside right upper", fontsize=8)
    drawn.savefig(path, dpi=130)
