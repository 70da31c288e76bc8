"""The result of an evaluation: what every mode gains and loses, in words and as tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from .answers import Answer
from .quality import Interval
from .scores import ModeScore, fastest_of, mode_scores
from .tables import Column, NumberTable, as_text, figure, number, percent, table, wrapped
from .verdict import BASES, base_of, conclusion, sentence


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """The answers of an evaluation, and every mode's score by its label; printed, tables and a verdict."""

    answers: Sequence[Answer]
    modes: Mapping[str, ModeScore]
    reference: str  # the label that all are compared with
    baselines: Mapping[str, Collection[str]]  # of :func:`.scores.baselines_of`
    is_whole: bool = True  # whether every mode has answered every problem

    @classmethod
    def of(
        cls, answers: Sequence[Answer], reference: str, baselines: Mapping[str, Collection[str]] = MappingProxyType({}),
        lossless: Collection[str] = (), batch_size: int = 1,
    ) -> EvaluationResult:  # fmt: skip
        """Sum up answers as :func:`.scores.mode_scores` does; ``lossless`` are rules that decide losslessly here."""
        rows = mode_scores(answers, reference, baselines, batch_size)
        scores = {row.label: replace(row, lossless=row.label in lossless) for row in rows}
        return cls(answers, scores, reference, baselines)

    def __repr__(self) -> str:
        return "\n\n".join([*map(as_text, self.tables), *(["\n".join(self.verdict)] if self.verdict else [])])

    def _repr_html_(self) -> str:
        return "\n".join([*(each.html() for each in self.tables), *(f"<p>{line}</p>" for line in self.verdict)])

    @property
    def fastest(self) -> dict[str, str]:
        """The label of each baseline's fastest mode."""
        paces = {label: row.tokens_per_second for label, row in self.modes.items() if row.speed is not None}
        return fastest_of(paces, self.baselines, self.reference)

    @property
    def verdict(self) -> list[str]:
        """What is shown of each mode but the reference, in a sentence each; of several rules also who is the fastest.

        Of the settings of ``lossless``, the fastest stands for all.
        """
        fastest, settings = self.fastest, {*self.baselines.get("lossless", ()), *self.baselines.get("stock", ())}
        graded = any(answer.score not in (None, 0, 0.5, 1) for answer in self.answers)
        slow = {*self.baselines.get("lossless", ())} - {*fastest.values()}
        words = []
        for label, row in self.modes.items():
            if label != self.reference and label not in slow:
                base = base_of(label, fastest, settings)
                words.append(sentence(row, base, fastest.get(base, ""), self.reference, graded=graded))
        base = base_of("", fastest)
        rules = [
            row for label, row in self.modes.items() if label not in settings | {self.reference, *fastest.values()}
        ]
        told = len(rules) > 1 and all(row.speed and base in row.speed.times and not row.speed.few for row in rules)
        return [*words, conclusion(rules, base, fastest[base])] if told else words

    @property
    def tables(self) -> list[NumberTable]:
        """Speed with quality, and how answers and the work for them differ."""
        rows = [*self.modes.values()]
        return [score_table(rows, self.reference, self.fastest), answer_table(rows, self.reference)]


Rows = Sequence[ModeScore]


def points(row: ModeScore) -> str:
    """Return a mode's difference from the reference with its interval; nothing for the reference itself."""
    values = Interval(*(100 * value for value in (row.difference, row.low, row.high)))
    return f"{values:+.1f}" if any(values) else ""


def _over(label: str) -> str:
    """Return the heading of a column with intervals beside a mode."""
    return wrapped(f"{label} (95 %)", 20)


def _label(row: ModeScore) -> str:
    return f"{row.label} (lossless)" if row.lossless else row.label


def _times(name: str, label: str) -> Column:
    def column(row: ModeScore) -> str:
        if row.speed is None:
            return ""
        return "too few calls" if row.speed.few and row.label != label else str(row.speed.times[name])

    return column


def score_table(rows: Rows, reference: str, fastest: Mapping[str, str]) -> NumberTable:
    """Lay out speed with quality, beside the fastest mode of the first baseline that is there."""
    columns: dict[str, Column] = {"mode": _label, "n": lambda row: str(row.n)}
    if any(row.score is not None for row in rows):
        columns |= {
            "score\n(%)": lambda row: percent(row.score, 1),
            f"points against\n{_over(reference)}": points,
        }
    columns["tokens\n/s"] = lambda row: "" if row.tokens_per_second is None else figure(row.tokens_per_second)
    if (base := next((name for name in BASES if name in fastest), None)) and any(row.speed for row in rows):
        columns[_over(f"× {fastest[base]}")] = _times(base, fastest[base])
    return table(rows, columns, "Speed and quality")


def answer_table(rows: Rows, reference: str) -> NumberTable:
    """Lay out how answers differ: a rule that writes more tokens a second may need more of them."""
    columns: dict[str, Column] = {
        "mode": _label,
        "tokens/\nround": lambda row: number(row.tokens_per_round),
        "same\ntexts": lambda row: str(row.same_texts),
        "tokens/\nanswer": lambda row: f"{row.tokens_per_answer:.1f}",
        f"more than\n{_over(reference)}": lambda row: "" if row.tokens_apart is None else f"{row.tokens_apart:+.1f}",
        "cut off\n(%)": lambda row: percent(row.cut_off, 1),
    }
    return table(rows, columns, f"Answers; same texts: as {reference}; cut off: ended at the limit of their length")
