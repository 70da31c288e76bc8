"""What a rule can save at each cost of a drafted token: rounds replayed from texts whose mismatches are labelled.

Texts are those that labelling ended with: a mismatch that does not matter has the draft's token there, any other one
the target's. A rule ends a draft at each mismatch that it refuses, and ``lossless`` at all of them. So drafts of any
length are counted without a forward pass, as if a rule's answers were no longer than those of ``lossless``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .tables import Interval, Row, interval, markdown, ratio, rows, times

TEXTS = {
    "GSM8K": ("no-shots", ("gsm8k", "gsm8k, an int8 writer"), "gsm8k"),
    "programs": ("code", ("functions",), "humaneval"),
}
"""By title: what the texts' orders and labels are called, and whole answers, for programs to other problems."""
COST = 0.05
"""Of a drafted token in the tables, as a share of a call of the target; the plot has others."""
DRAWN = np.geomspace(0.005, 0.5, 40)
"""The costs of a drafted token in plots."""
LENGTHS = np.arange(1, 33)
"""The lengths γ of drafts."""
WRITTEN = "5"
"""γ of the whole answers."""
RULES = {  # by name: the order by which it keeps mismatches; the least value, or the share that it keeps; its answers
    "judge": ("order: judge", None, 0.45, "judge:threshold=0.263591"),
    "`min_p`": ("order: min_p, near_top, lenience, regret", 0.5, None, "min_p"),
    "`typical`": ("order: typical", 1.0, None, "typical"),
}
LOSSLESS, KNOWING, BLIND, ALL = "`lossless`", "an oracle", "a blind choice", "`everything`"


def rounds(length: int, stops: Sequence[int], gamma: int) -> int:
    """Return the rounds of a text with drafts of γ tokens, where those at ``stops``, in order, are refused.

    Examples
    --------
    >>> rounds(12, [2], 5)  # two tokens and a correction, five and the bonus, three
    3
    """
    at = count = 0
    for stop in (*stops, length):
        while at <= stop and at < length:
            at, count = min(at + gamma, stop) + 1, count + 1
    return count


class Drafted:
    """Texts, replayed with drafts of other lengths."""

    places: Sequence[tuple[int, Sequence[int]]]
    """The length of each text, and where drafts end in it."""

    @cached_property
    def drafts(self) -> dict[str, np.ndarray]:
        """``(N, 2)`` the rounds of each text and the tokens that they draft, by the length of drafts."""
        return {str(n): np.outer([rounds(*text, n) for text in self.places], (1, n)) for n in LENGTHS}

    def best(self, cost: float) -> tuple[str, np.ndarray]:
        """Return the drafts that are best for all texts, and each text's time with them, in calls."""
        spent = {name: both @ (1, cost) for name, both in self.drafts.items()}
        name = min(spent, key=lambda x: spent[x].sum())
        return name, spent[name]


@dataclass(frozen=True, eq=False)
class Text:
    """An answer and its mismatches, in order."""

    length: int
    mismatches: tuple[Row, ...]  # a label each: `index` in the text, and whether it is `important`
    orders: tuple[Row, ...]  # of the same mismatches: how early each rule keeps them


@cache
def texts(title: str) -> tuple[Text, ...]:
    """Return the texts whose mismatches are all labelled."""
    own, names, _ = TEXTS[title]
    orders = iter([x for x in rows("price") if x["texts"] == own])
    found = []
    for x in rows("labels"):
        labelled = tuple(m for m in x["mismatches"] if m["weight"])
        if x["texts"] in names and len(labelled) == len(x["mismatches"]):
            found.append(Text(len(x["last_response"]), labelled, tuple(next(orders) for _ in labelled)))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Replay(Drafted):
    """What a rule keeps of texts, and the rounds that this leaves."""

    texts: tuple[Text, ...]
    kept: np.ndarray  # (M,) whether the mismatches of all texts are

    @classmethod
    def of(cls, title: str, rule: str) -> Replay:
        every = [row for text in texts(title) for row in zip(text.mismatches, text.orders, strict=True)]
        if rule in RULES:
            order, least, share, _ = RULES[rule]
            values = np.array([row[order] for _, row in every], dtype=float)
            kept = values >= (np.quantile(values, 1 - share) if least is None else least)
        elif rule == KNOWING:
            kept = np.array([not label["important"] for label, _ in every])
        elif rule == BLIND:
            kept = np.random.default_rng(0).random(len(every)) < RULES["judge"][2]
        else:
            kept = np.full(len(every), rule == ALL)
        return cls(texts(title), kept)

    @property
    def places(self) -> list[tuple[int, list[int]]]:
        kept = iter(self.kept.tolist())
        return [(text.length, [x["index"] for x in text.mismatches if not next(kept)]) for text in self.texts]

    def beside(self, other: Replay, cost: float) -> Interval:
        """Return the time of an answer beside another rule's, where a drafted token costs so much."""
        return interval(np.stack([x.best(cost)[1] for x in (self, other)], axis=1), ratio, log=True)

    @property
    def calls(self) -> float:
        """The tokens of a call with drafts as long as those of the whole answers."""
        return sum(text.length for text in self.texts) / float(self.drafts[WRITTEN][:, 0].sum())

    @property
    def matter(self) -> float:
        """The share of the kept mismatches that matter."""
        important = np.array([x["important"] for text in self.texts for x in text.mismatches])
        return float((self.kept & important).sum() / self.kept.sum())


def answers_of(configuration: str, mode: str) -> dict[int, Row]:
    """Return a mode's answers, by problem."""
    return {x["id"]: x for x in rows(configuration) if x["mode"] == mode}


def written(title: str, rule: str) -> dict[int, Row]:
    """Return the whole answers that a rule wrote, by problem; none where it wrote none."""
    mode = RULES[rule][3] if rule in RULES else rule.strip("`")
    return answers_of(TEXTS[title][2], mode)


def right_price(sums: np.ndarray) -> np.ndarray:
    """Return the price of a right answer beside another mode's, of sums ``(N, 4)``: prices and scores of both."""
    return sums[:, 0] * sums[:, 3] / (sums[:, 1] * sums[:, 2])


def of_right(title: str, rule: str, replays: tuple[Replay, Replay], cost: float) -> Interval | None:
    """Return the time of a right answer beside ``lossless``: that of whole answers, times what better drafts bring.

    ``replays`` are those of the rule and of ``lossless``. The errors of answers and replays are independent, on the
    scale of logarithms.
    """
    own, base = written(title, rule), written(title, LOSSLESS)
    if not own:
        return None
    both = [[x[k] for x in (own[i], base[i]) for k in ("rounds", "score")] for i in own]
    price = interval(np.array(both, dtype=float), right_price, log=True)
    time = replays[0].beside(replays[1], cost)
    middle = price[0] * time[0] * replays[0].calls / replays[1].calls
    spread = math.hypot(math.log(price[2] / price[0]), math.log(time[2] / time[0]))
    return middle, middle * math.exp(-spread), middle * math.exp(spread)


def table() -> str:
    """Return what each rule keeps, how much of it matters, and the time of an answer beside ``lossless``."""
    lines = []
    for title in TEXTS:
        base = Replay.of(title, LOSSLESS)
        for rule in (LOSSLESS, KNOWING, *RULES, BLIND, ALL):
            own, answers = Replay.of(title, rule), written(title, rule).values()
            seen = [f"{sum(x['tokens'] for x in answers) / sum(x['rounds'] for x in answers):.2f}"] if answers else []
            calls = ", ".join([f"{own.calls:.2f}", *seen])
            if rule == LOSSLESS:
                lines.append((f"{title}, {len(own.texts)}", rule, "", "", calls, "1", "1"))
                continue
            multiples = own.beside(base, COST), of_right(title, rule, (own, base), COST)
            lines.append(("", rule, f"{own.kept.mean():.2f}", f"{100 * own.matter:.0f}", calls, *map(times, multiples)))
    heads = ("texts", "rule", "f", "matter, %", "tokens a call", "answer, ×", "right answer, ×")
    return markdown(heads, lines)


def draw_panels(path: Path, panels: Mapping[str, Mapping[str, np.ndarray]], what: str) -> None:
    """Draw quantities with their intervals ``(C, 3)`` over the costs that are drawn, by panel and rule."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for name, values in curves.items():
            (line,) = axes.plot(DRAWN, values[:, 0], label=name.strip("`"))
            axes.fill_between(DRAWN, *values[:, 1:].T, color=line.get_color(), alpha=0.15)
        axes.axhline(1, color="0.8", linewidth=1)
        axes.set(xscale="log", xlabel="a drafted token's share of a call of the target", title=title)
    figure.axes[0].set_ylabel(what)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def draw(path: Path) -> None:
    """Draw the time of an answer beside ``lossless`` over the cost of a drafted token."""
    panels = {}
    for title in TEXTS:
        base, *rules = (Replay.of(title, x) for x in (LOSSLESS, KNOWING, *RULES, ALL))
        curves = (np.array([own.beside(base, c) for c in DRAWN]) for own in rules)
        panels[title] = dict(zip((KNOWING, *RULES, ALL), curves, strict=True))
    draw_panels(path, panels, "time of an answer / that of lossless")
