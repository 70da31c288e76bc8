"""The result of an evaluation: scores, lengths and speeds of every mode, also by category."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from .answers import Answer, AnswerStore, by_mode
from .quality import Interval, tokens_per_call
from .scores import ModeScore, mode_scores
from .tables import NumberTable, as_text
from .views import all_tables, plot_scores


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
    noise: Sequence[str] = ()  # labels of modes whose texts differ from the reference's by rounding alone
    is_whole: bool = True  # whether every mode has answered every problem

    @classmethod
    def of(
        cls, answers: Sequence[Answer], reference: str, categories: Sequence[str] = (),
        predicted: Mapping[str, Mapping[int, float]] = MappingProxyType({}),
        baselines: Mapping[str, Collection[str]] = MappingProxyType({}), batch_size: int = 1,
    ) -> EvaluationResult:  # fmt: skip
        """Sum up answers to problems of the given ``categories``; the rest is as for :func:`.scores.mode_scores`."""
        scores = {row.label: row for row in mode_scores(answers, reference, predicted, baselines, batch_size)}
        kinds = []
        for category in dict.fromkeys(categories) if len({*categories}) > 1 else ():
            own = [answer for answer in answers if categories[answer.id] == category]
            lengths = {label: tokens_per_call(x.values()) for label, x in by_mode(own).items()}
            rows = mode_scores(own, reference, predicted, baselines, batch_size)
            kinds += [Kind(category, row, lengths[row.label]) for row in rows]
        return cls(answers, scores, reference, kinds)

    def __repr__(self) -> str:
        return "\n\n".join(map(as_text, self.tables))

    @property
    def floor(self) -> float | None:
        """The most that rounding alone has moved the score, up or down; None if nobody asked for it."""
        return max((abs(self.modes[label].difference) for label in self.noise if label in self.modes), default=None)

    def verdict(self, label: str) -> str:
        """Say whether a mode's difference exceeds the :attr:`floor`, and by how many points at least."""
        row = self.modes[label]
        for word, end in (("loses", -row.high), ("gains", row.low)):
            if end > self.floor:
                return f"{word} at least {100 * (end - self.floor):.1f}"
        return "can't tell"

    @property
    def tables(self) -> list[NumberTable]:
        """Scores, lengths, speeds and stages where they are known, and all by category."""
        verdicts = None
        if self.floor is not None:
            others = [label for label in self.modes if label != self.reference]
            verdicts = {label: "rounding" if label in self.noise else self.verdict(label) for label in others}
        return all_tables(list(self.modes.values()), self.reference, self.kinds, verdicts, self.floor)

    def save(self, store: AnswerStore) -> None:
        """Write ``summary.json`` with an entry per mode, ``categories.json``, and ``plot.png``: speed against score."""
        store.write("summary.json", {label: row.entry for label, row in self.modes.items()})
        if self.floor is not None:
            said = {label: self.verdict(label) for label in self.modes if label not in (self.reference, *self.noise)}
            store.write("noise.json", {"floor": self.floor, "rounding": list(self.noise), "verdicts": said})
        if self.kinds:
            store.write("categories.json", [asdict(kind) for kind in self.kinds])
        plot_scores(list(self.modes.values()), store.folder / "plot.png")
