"""The result of an evaluation: what answers add up to, and what each mode gains and loses, in sentences and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

from .answers import Answer, by_mode
from .modes import DecodingMode
from .quality import Interval, interval, paired_interval, smallest_loss, times_as_fast
from .tables import Column, NumberTable, as_text, figure, number, percent, table, wrapped


@dataclass(frozen=True)
class Speed:
    """How fast calls of a mode were beside the baselines."""

    times: Mapping[str, Interval]  # tokens per second over those of a baseline's fastest mode, by the baseline's name
    calls: int  # of ``generate()``

    @property
    def few(self) -> bool:
        """Whether calls are too few for an interval that tells anything: with three, its ends are 4.3 errors off."""
        return self.calls < 4


@dataclass(frozen=True)
class ModeScore:
    """The results of one mode on all problems that it answered."""

    label: str
    score: float | None  # the mean; None if answers were only timed
    n: int  # problems
    difference: float  # the score less the reference's on the same problems; 0 for the reference itself
    low: float  # of the difference's 95 % interval
    high: float
    mean_accepted: float  # drafted tokens kept per round; 0 without rounds, like those of the draft alone
    tokens_per_round: float
    tokens_per_second: float
    target_calls_per_100_tokens: float  # a round is one call
    same_texts: int  # texts equal to the reference's
    tokens_per_answer: float
    tokens_apart: Interval | None  # from the reference's on the same problems; None for the reference itself
    seconds_per_answer: float
    cut_off: float  # the share of answers that ended at the limit of their length
    speed: Speed = Speed(MappingProxyType({}), 0)
    lossless: bool = False  # whether a lossy rule decides as the lossless one here

    @property
    def entry(self) -> dict[str, Any]:
        """The mode's entry in ``summary.json``."""
        return {name: value for name, value in asdict(self).items() if name != "label"}


def baselines_of(modes: Iterable[DecodingMode]) -> dict[str, list[str]]:
    """Return the labels of the modes that speeds are compared with: of this process, and by the target's own law."""
    own = [mode for mode in modes if mode.engine is None and mode.answers == "target"]
    return {
        "plain": [mode.label for mode in own if mode.is_alone],
        "stock": [mode.label for mode in own if mode.is_stock],
        "lossless": [mode.label for mode in own if mode.rule == "lossless"],
    }


_Calls = Mapping[int, tuple[float, float]]
"""Tokens and seconds of calls, by their number."""


def _score(
    label: str, own: Mapping[int, Answer], others: Mapping[int, Answer], is_reference: bool, is_lossless: bool
) -> ModeScore:  # fmt: skip
    """Sum up one mode, and compare it with the reference's answers, ``others``."""
    both = [(own[i], others[i]) for i in sorted(own.keys() & others.keys())]
    compared = [] if is_reference else both
    tokens, rounds, accepted, cut, seconds = (
        sum(getattr(answer, name) for answer in own.values())
        for name in ("tokens", "rounds", "accepted", "cut", "seconds")
    )
    scored = all(answer.score is not None for answer in own.values())
    apart = (0.0, 0.0, 0.0)
    if compared and scored:
        apart = paired_interval([a.score for a, _ in compared], [b.score for _, b in compared])
    return ModeScore(
        label, fmean(answer.score for answer in own.values()) if scored else None, len(own), *apart,
        *((accepted / rounds, tokens / rounds) if rounds else (0.0, 0.0)),
        tokens / max(1e-12, seconds), 100 * rounds / tokens if tokens else 0.0,
        sum(a.text == b.text for a, b in both), tokens / len(own),
        interval([a.tokens - b.tokens for a, b in compared]) if compared else None,
        seconds / len(own), cut / len(own), lossless=is_lossless,
    )  # fmt: skip


def _calls(answers: Mapping[int, Answer], size: int) -> _Calls:
    """Put the answers of a call together."""
    sums: dict[int, tuple[float, float]] = {}
    for i, answer in answers.items():
        tokens, seconds = sums.get(i // size, (0, 0.0))
        sums[i // size] = tokens + answer.tokens, seconds + answer.seconds
    return sums


def _ratio(own: _Calls, other: _Calls) -> Interval | None:
    """Return the ratio of the speeds of two modes on the calls of both."""
    common = sorted(own.keys() & other.keys())
    return times_as_fast([own[i] for i in common], [other[i] for i in common]) if common else None


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """The answers of an evaluation, and every mode's score by its label; printed, tables and a verdict."""

    answers: Sequence[Answer]
    modes: Mapping[str, ModeScore]
    reference: str  # the label that all are compared with
    baselines: Mapping[str, Collection[str]]  # of :func:`baselines_of`
    is_whole: bool = True  # whether every mode has answered every problem

    @classmethod
    def of(
        cls, answers: Sequence[Answer], reference: str, baselines: Mapping[str, Collection[str]] = MappingProxyType({}),
        lossless: Collection[str] = (), batch_size: int = 1,
    ) -> EvaluationResult:  # fmt: skip
        """Sum up every mode, and compare it with the mode ``reference`` on the problems that both have answered.

        Parameters
        ----------
        baselines
            The labels of :func:`baselines_of`. Of each baseline the fastest mode counts for :class:`Speed`. Where none
            is there, the reference is one.
        lossless
            The labels of rules that decide losslessly here.
        batch_size
            Problems of one call, whose time they share.
        """
        modes = by_mode(answers)
        others, calls = modes.get(reference, {}), {label: _calls(own, batch_size) for label, own in modes.items()}
        rows = {x: _score(x, own, others, x == reference, x in lossless) for x, own in modes.items()}
        fastest = cls(answers, rows, reference, baselines).fastest
        for label, own in calls.items():
            ratios = {name: _ratio(own, calls[other]) for name, other in fastest.items()}
            rows[label] = replace(rows[label], speed=Speed(ratios, len(own)))
        return cls(answers, rows, reference, baselines)

    def __repr__(self) -> str:
        return "\n\n".join([*map(as_text, self.tables), *(["\n".join(self.verdict)] if self.verdict else [])])

    @property
    def fastest(self) -> dict[str, str]:
        """The label of each baseline's fastest mode, of those that have answered; without any, the reference is one."""
        paces = {label: row.tokens_per_second for label, row in self.modes.items()}
        known = {name: [label for label in labels if label in paces] for name, labels in self.baselines.items()}
        found = {name: max(labels, key=paces.__getitem__) for name, labels in known.items() if labels}
        return found or ({"reference": self.reference} if self.reference in paces else {})

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
        told = len(rules) > 1 and all(row.speed.times.get(base) and not row.speed.few for row in rules)
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


def score_table(rows: Rows, reference: str, fastest: Mapping[str, str]) -> NumberTable:
    """Lay out speed with quality, beside the fastest mode of the first baseline that is there."""
    columns: dict[str, Column] = {"mode": _label, "n": lambda row: str(row.n)}
    if any(row.score is not None for row in rows):
        columns |= {"score\n(%)": lambda row: percent(row.score, 1), f"points against\n{_over(reference)}": points}
    columns["tokens\n/s"] = lambda row: figure(row.tokens_per_second)
    if base := next((name for name in BASES if name in fastest), None):
        columns[_over(f"× {fastest[base]}")] = lambda row: (
            "too few calls" if row.speed.few and row.label != fastest[base] else str(row.speed.times[base])
        )
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
    times = row.speed.times.get(base)
    if times is None:
        speed = f"{name} writes {figure(row.tokens_per_second)} tokens a second"
    elif row.speed.few:
        speed = f"{name} was called fewer than 4 times, too few to tell its speed"
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
    return (
        f"{speed}, and no loss{beside} is shown on {row.n} problems, which can show {100 * least:.2g} points or more."
    )


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
