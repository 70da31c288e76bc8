"""The result of an evaluation: scores, lengths and speeds of every mode, also by category."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from .answers import Answer, AnswerStore, by_mode
from .quality import Interval, ModeScore, mode_scores, tokens_per_call
from .tables import (
    NumberTable,
    as_text,
    kind_table,
    length_table,
    noise_table,
    plot,
    predicted_table,
    score_point,
    score_table,
)


@dataclass(frozen=True)
class Kind:
    """A mode's results on the prompts of one category."""

    category: str
    row: ModeScore
    acceptance: Interval  # tokens per call of the target, with a bootstrap over the prompts


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """The answers of an evaluation, and every mode's score by its label; prints as a table of scores."""

    answers: Sequence[Answer]
    modes: Mapping[str, ModeScore]
    reference: str  # the label that all are compared with
    kinds: Sequence[Kind] = ()  # the same by the prompts' categories, if the task has several
    noise: Sequence[str] = ()  # labels of modes whose texts differ from the reference's by rounding alone

    @classmethod
    def of(
        cls, answers: Sequence[Answer], reference: str, categories: Sequence[str],
        predicted: Mapping[str, Mapping[int, float]], lossless: Collection[str],
    ) -> EvaluationResult:  # fmt: skip
        """Sum up answers to problems of the given ``categories``; the rest is as for :func:`.quality.mode_scores`."""
        scores = {row.label: row for row in mode_scores(answers, reference, predicted, lossless)}
        kinds = []
        for category in dict.fromkeys(categories) if len({*categories}) > 1 else ():
            own = [answer for answer in answers if categories[answer.id] == category]
            lengths = {label: tokens_per_call(x.values()) for label, x in by_mode(own).items()}
            rows = mode_scores(own, reference, predicted, lossless)
            kinds += [Kind(category, row, lengths[row.label]) for row in rows]
        return cls(answers, scores, reference, kinds)

    def __repr__(self) -> str:
        return "\n\n".join(map(as_text, self.tables))

    @property
    def floor(self) -> float | None:
        """The most that rounding alone has moved the score, up or down; None if nobody asked for it."""
        return max((abs(self.modes[label].difference) for label in self.noise if label in self.modes), default=None)

    def verdict(self, label: str) -> str:
        """Say what a mode's interval leaves of its difference beyond :attr:`floor`, in points."""
        row = self.modes[label]
        for word, end in (("loses", -row.high), ("gains", row.low)):
            if end > self.floor:
                return f"{word} at least {100 * (end - self.floor):.1f}"
        return "can't tell"

    @property
    def tables(self) -> list[NumberTable]:
        """Scores, lengths, speeds where they are known, and all by category."""
        rows, reference = self.modes.values(), self.reference
        made = [score_table(rows, reference), length_table(rows, reference), predicted_table(rows, reference)]
        if self.floor is not None:
            others = [row for row in rows if row.label != reference]
            said = {row.label: "rounding" if row.label in self.noise else self.verdict(row.label) for row in others}
            made.append(noise_table(others, said, self.floor))
        return [one for one in (*made, kind_table(self.kinds)) if one is not None]

    def save(self, store: AnswerStore) -> None:
        """Write ``summary.json`` with an entry per mode, ``categories.json``, and ``plot.png``: speed against score."""
        store.write("summary.json", {label: row.entry for label, row in self.modes.items()})
        if self.floor is not None:
            said = {label: self.verdict(label) for label in self.modes if label not in (self.reference, *self.noise)}
            store.write("noise.json", {"floor": self.floor, "rounding": list(self.noise), "verdicts": said})
        if self.kinds:
            store.write("categories.json", [asdict(kind) for kind in self.kinds])
        timed = all(row.tokens_per_second is not None for row in self.modes.values())
        speed = "tokens_per_second" if timed else "tokens_per_round"
        plot(
            {label: score_point(row, getattr(row, speed)) for label, row in self.modes.items()},
            speed.replace("_", " "), "score (%; bars: 95 % interval of the difference)", store.folder / "plot.png",
        )  # fmt: skip
