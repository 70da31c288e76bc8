"""What rules bring in whole answers with long drafts, at each cost of a drafted token, and with the target on disk.

A rule that judges each drafted token on its own writes nearly the same text with drafts of any length. So an answer is
replayed with drafts of other lengths than its own, and with drafts that end by their chances: a draft ends where its
token was refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .headroom import COST, DRAWN, LENGTHS, Drafted, answers_of, draw_panels, right_price
from .tables import Interval, Row, interval, markdown, points, ratio, rows, signed, times

WHOLE, PROGRAMS = "gsm8k-32", "humaneval-32"
MODES = {  # by configuration: its modes, the reference first
    WHOLE: ("lossless@32", "min_p@32", "judge@32:threshold=0.263591", "typical@32"),
    PROGRAMS: ("lossless@32", "min_p@32", "judge@32:threshold=0.129306", "typical@32"),
}
ON_DISK = {  # by configuration: its texts, their whole answers, and the drafts of each mode, the reference first
    "gsm8k-on-disk": (
        "GSM8K",
        WHOLE,
        {"lossless@32": "≥ 0.15", "judge@32:threshold=0.263591": "≥ 0.1", "typical@32": "32"},
    ),
    "humaneval-on-disk": (
        "programs",
        PROGRAMS,
        dict.fromkeys(("lossless@32", "judge@32:threshold=0.129306", "typical@32"), "32"),
    ),
}
OTHERS = ("strict_words@32:threshold=0.13", "regret@32", "everything@32")
"""Further modes of both configurations."""
COSTS = (0.1, COST, 0.02, 0.01)
"""Of a drafted token in the table, as shares of a call of the target."""
ENDS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Drafts may end by their chances, too: once ``Π q(xᵢ)`` is below one of these."""


def ended(answer: Row, least: float, longest: int = LENGTHS[-1]) -> tuple[int, int]:
    """Return the rounds of an answer and the tokens that they draft, where drafts end once ``Π q(xᵢ)`` < ``least``.

    Thousandths say how likely the draft finds each token of the text, and, from each refused one on, each token that
    it would have drafted. What the last draft has past the text's end is not counted.
    """
    past = dict(zip(answer["refused"], answer["past"], strict=True))
    at = count = drafted = 0
    while at < answer["tokens"]:
        stop = next((x for x in answer["refused"] if x >= at), answer["tokens"])
        chances = np.array([*answer["chances"][at:stop], *past.get(stop, ())][:longest]) / 1000
        unlikely = np.flatnonzero(chances.cumprod() < least)
        n = int(unlikely[0]) + 1 if len(unlikely) else len(chances)
        at, count, drafted = min(at + n, stop) + 1, count + 1, drafted + n
    return count, drafted


@dataclass(frozen=True, eq=False)
class Written(Drafted):
    """A mode's answers."""

    answers: Sequence[Row]

    @classmethod
    @cache
    def of(cls, configuration: str, mode: str) -> Written:
        return cls([*answers_of(configuration, mode).values()])

    @property
    def places(self) -> list[tuple[int, list[int]]]:
        return [(x["tokens"], x["refused"]) for x in self.answers]

    @cached_property
    def drafts(self) -> dict[str, np.ndarray]:
        """The same by their length or end."""
        return super().drafts | {f"≥ {least}": np.array([ended(x, least) for x in self.answers]) for least in ENDS}

    @cached_property
    def scores(self) -> np.ndarray:
        return np.array([x["score"] for x in self.answers])

    def beside(self, other: Written, cost: float) -> tuple[Interval, Interval]:
        """Return the times of an answer and of a right one beside another mode's, each with its best drafts."""
        (_, own), (_, base) = (x.best(cost) for x in (self, other))
        return multiples(own, self.scores, base, other.scores)


class Together(Written):
    """Answers of a rule whose texts depend on how long drafts are: they tell of no others than their own."""

    @cached_property
    def drafts(self) -> dict[str, np.ndarray]:
        return {"32": np.outer([x["rounds"] for x in self.answers], (1, 32))}


def multiples(*columns: np.ndarray) -> tuple[Interval, Interval]:
    """Return the times of an answer and of a right one beside another mode's, of times and scores of both."""
    both = np.stack(columns, axis=1)
    return interval(both[:, [0, 2]], ratio, log=True), interval(both, right_price, log=True)


def beside_lossless(configuration: str = WHOLE) -> dict[str, tuple[Written, Written]]:
    """Return each mode's answers, and the reference's."""
    reference, *modes = MODES[configuration]
    return {mode: (Written.of(configuration, mode), Written.of(configuration, reference)) for mode in modes}


def table(configuration: str = WHOLE) -> str:
    """Return what rules cost and gain in whole answers, by the cost of a drafted token; further ones at the least."""
    modes = {mode: (*both, COSTS) for mode, both in beside_lossless(configuration).items()}
    base = Written.of(configuration, MODES[configuration][0])
    for mode in OTHERS:
        kind = Written if mode.startswith("strict_words") else Together
        modes[mode] = kind.of(configuration, mode), base, COSTS[-1:]
    lines = []
    for mode, (own, base, costs) in modes.items():
        cells = [f"`{mode}`", signed(points(own.scores, base.scores))]
        for cost in costs:
            drafts = ", ".join(x.best(cost)[0] for x in (own, base))
            lines.append([*cells, cost, drafts, *map(times, own.beside(base, cost))])
            cells = ["", ""]
    return markdown(("rule", "points", "c", "drafts", "answer, ×", "right answer, ×"), lines)


def first() -> str:
    """Return README's table: what a right answer takes by the cost of a drafted token, and how many are lost."""
    lines = []
    for configuration, texts in ((WHOLE, "problems"), (PROGRAMS, "programs")):
        for mode, (own, base) in beside_lossless(configuration).items():
            at = [times(own.beside(base, cost)[1]) for cost in COSTS]
            lines.append((f"{texts}: `{mode.partition('@')[0]}`", *at, signed(points(own.scores, base.scores), 0)))
    return markdown(("a drafted token takes", *(f"1/{1 / c:.0f} of a call" for c in COSTS), "right, of 100"), lines)


def draw(path: Path, configuration: str = WHOLE) -> None:
    """Draw the time of a right answer beside that of ``lossless`` over the cost of a drafted token."""
    modes = beside_lossless(configuration)
    curves = {x: np.array([own.beside(base, c) for c in DRAWN]) for x, (own, base) in modes.items()}
    panels = {
        f"the time of {what}": {name: values[:, i] for name, values in curves.items()}
        for i, what in enumerate(("an answer", "a right answer"))
    }
    draw_panels(path, panels, "beside lossless")


def share(answers: Sequence[Row]) -> float:
    """Return the seconds of a drafted token as a share of those of a call, by the seconds of answers.

    A prompt takes a constant time.
    """
    given = np.array([(1.0, x["rounds"], x["drafted"]) for x in answers])
    _, call, token = np.linalg.lstsq(given, np.array([x["seconds"] for x in answers]), rcond=None)[0]
    return float(token / call)


def on_disk() -> str:
    """Return what answers took with the target on disk, beside what whole answers foretell at this cost."""
    lines = []
    for configuration, (title, whole, modes) in ON_DISK.items():
        cost, base = share(rows(configuration)), None
        cells = [f"{title}, c = {cost:.3f}"]
        for mode, drafts in modes.items():
            own = Written.of(configuration, mode)
            seconds = np.array([x["seconds"] for x in own.answers])
            foretold = Written.of(whole, mode).drafts[drafts] @ (1, cost)
            calls = sum(x["tokens"] for x in own.answers) / sum(x["rounds"] for x in own.answers)
            right = f"{own.scores.sum():.0f} of {len(own.answers)}"
            cells += [f"`{mode}`", drafts, right, f"{calls:.1f}", f"{seconds.mean():.0f}"]
            if base is None:
                base = seconds, own.scores, foretold
                columns = ["1"] * 3
            else:
                seen, price = multiples(seconds, own.scores, *base[:2])
                said = interval(np.stack([foretold, base[2]], axis=1), ratio, log=True)
                columns = [*map(times, (seen, said, price))]
            lines.append([*cells, *columns])
            cells = [""]
    heads = ("time, ×", "foretold", "right answer, ×")
    return markdown(("texts", "mode", "drafts", "right", "tokens a call", "seconds", *heads), lines)


def draw_on_disk(path: Path) -> None:
    """Draw the seconds of each answer with the target on disk; crosses are wrong answers."""
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    panels = figure.subplots(1, len(ON_DISK))
    for axes, (configuration, (title, _, modes)) in zip(panels, ON_DISK.items(), strict=True):
        for i, mode in enumerate(modes):
            own = answers_of(configuration, mode).values()
            axes.plot([x["id"] for x in own], [x["seconds"] for x in own], color=f"C{i}", linewidth=0.6)
            for right, marker in ((1, "o"), (0, "x")):
                some = [x for x in own if x["score"] == right]
                label = mode if right else None
                axes.plot([x["id"] for x in some], [x["seconds"] for x in some], f"C{i}{marker}", label=label)
        axes.set(xlabel="problem", title=title, ylim=(0, 1.3 * axes.get_ylim()[1]))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize="x-small", loc="upper left")
    figure.axes[0].set_ylabel("seconds of an answer")
    figure.savefig(path, dpi=100)
