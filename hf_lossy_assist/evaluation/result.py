"""The result of an evaluation: what every mode gains and loses, in sentences and as tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from .answers import Answer
from .quality import Interval, smallest_loss
from .scores import ModeScore, fastest_of, mode_scores
from .tables import Column, NumberTable, as_text, figure, number, percent, table, wrapped


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


BASES = ("lossless", "plain", "stock", "reference")
"""The baselines that a rule's speed is compared with, the first that is there."""


def base_of(label: str, fastest: Mapping[str, str], settings: Collection[str] = ()) -> str | None:
    """Return the name of the baseline that a mode is compared with; that of ``settings`` of a baseline is plain."""
    names = ("plain", "reference") if label in settings else BASES
    return next((name for name in names if fastest.get(name, label) != label), None)


def sentence(row: ModeScore, base: str | None, against: str, reference: str, *, graded: bool = False) -> str:
    """Return what a mode brings: its speed beside the baseline ``base``, whose mode is ``against``, and its losses.

    Where answers are right or wrong and not ``graded``, the number of problems alone bounds the loss that they show.
    """
    name = f"`{row.label}`{', which is lossless here,' if row.lossless else ''}"
    times = None if base is None or row.speed is None else row.speed.times.get(base)
    if row.speed is None:
        speed = f"{name} was not timed"
    elif times is None:
        speed = f"{name} writes {figure(row.tokens_per_second)} tokens a second"
    elif row.speed.few:
        speed = f"{name} was called too few times to tell its speed"
    elif times.low <= 1 <= times.high:
        speed = f"{name} is tied with `{against}` in speed, {times} ×"
    elif times.low > 1:
        speed = f"{name} is {times} × as fast as `{against}`"
    else:
        speed = f"{name} is slower than `{against}`, {times} × as fast"
    beside = "" if against == reference else f" against `{reference}`"
    if row.score is None:
        return f"{speed}; its answers were not scored."
    if row.high < 0:
        joined = "but" if " as fast as " in speed else "and"
        lost = Interval(*(-100 * end for end in (row.difference, row.high, row.low)))
        return f"{speed}, {joined} it loses {lost:.1f} points{beside}."
    if (least := smallest_loss(row.n)) is None:
        return f"{speed}, and {row.n} problem{'s are' if row.n > 1 else ' is'} too few to show a loss{beside}."
    least = max(least * (not graded), (row.high - row.low) / 2)  # scattered answers show less
    return f"{speed}, and no loss{beside} is shown on {row.n} problems, which can show {100 * least:.2g} points."


def conclusion(rules: Sequence[ModeScore], base: str, against: str) -> str:
    """Return which of several rules is the fastest with no loss shown; those whose intervals meet are tied."""
    known = [row for row in rules if row.speed.times[base].low > 1]
    if not known:
        return f"No rule is shown to be faster than `{against}`."
    scored = all(row.score is not None for row in known)
    good = [row for row in known if row.high >= 0]
    if not good:
        return f"Every rule that is shown to be faster than `{against}` loses points."
    best = max((row.speed.times[base] for row in good), key=lambda times: times.value)
    tied = [f"`{row.label}`" for row in good if row.speed.times[base].high >= best.low]
    of = " of the rules with no loss shown" if scored else ""
    return f"Tied as the fastest{of}: {', '.join(tied)}." if len(tied) > 1 else f"The fastest{of} is {tied[0]}."
