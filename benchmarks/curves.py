"""How early each rule keeps labelled mismatches, and which of those that it keeps matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .tables import Interval, Row, holm, markdown, rows, signed, times

DRAWS, SHARES = 1000, (0.3, 0.5, 0.7)
RATIO = "min_p, near_top, lenience, regret"
SHOWN = (
    "judge with features", "judge", "features alone", "fsd; no digits or operators", "fsd", "`dropmatch`", RATIO,
    "typical", "fly with its window",
)  # fmt: skip
"""The rules in the page's table; Holm's correction counts all of them."""


class Curves:
    """Labelled mismatches, and how early each rule keeps them as its knob opens; some rules have decisions instead."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.important, prompts, self.weights = (
            np.array([x[k] for x in rows]) for k in ("important", "prompt", "weight")
        )
        _, self.owner = np.unique(prompts, return_inverse=True)
        names = [x for x in rows[0] if x.startswith("order: ")]
        self.order = {x.removeprefix("order: "): np.array([row[x] for row in rows], dtype=float) for x in names}
        self.decisions: dict[str, np.ndarray] = {}
        if "dropmatch" in rows[0]:
            self.decisions["`dropmatch`"] = np.array([x["dropmatch"] for x in rows], dtype=float)
            self.decisions["regret with its budget"] = np.array([x["regret"] for x in rows])
        if rows[0].get("followed") is not None:
            full = np.array([x["followed"] >= 5 for x in rows])
            sure = self.order["fly, its entropy alone"][:, None] >= np.linspace(1, 0, 60)
            self.decisions["fly with its window"] = (sure & full[:, None]).astype(float)
        draws = self.samples(DRAWS) * self.weights
        self.draws = draws / draws.sum(1, keepdims=True)

    def samples(self, n: int) -> np.ndarray:
        """Return how often each row counts: once, and in ``n`` samples of the prompts."""
        count, rng = self.owner.max() + 1, np.random.default_rng(0)
        drawn = (np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(n))
        return np.stack([np.ones(count), *drawn])[:, self.owner]

    def curve(self, rule: str) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(D, P)`` the mismatches kept, and the important ones, as shares of all, as the knob opens."""
        if rule in self.decisions:
            parts, own = (self.draws, self.draws * self.important), self.decisions[rule]
            kept = own[:, np.argsort(own.mean(0), kind="stable")]
            return tuple(part @ kept for part in parts)
        own = self.order[rule]
        known = self.draws * np.isfinite(own)
        parts, order = (known, known * self.important), np.argsort(-own, kind="stable")
        ends = np.flatnonzero(np.append(own[order][1:] != own[order][:-1], True))  # a knob keeps ties together
        return tuple(part[:, order].cumsum(1)[:, ends] for part in parts)

    def area(self, rule: str) -> Interval:
        """Return the AUC, with an interval by resampling prompts."""
        kept, important = (np.pad(x, ((0, 0), (1, 0))) for x in self.curve(rule))
        harmless = kept - important
        with np.errstate(invalid="ignore"):  # a sample may have none that matters
            areas = np.trapezoid(harmless / harmless[:, -1:], important / important[:, -1:], axis=1)
        return areas[0], *np.nanquantile(areas[1:], (0.025, 0.975))

    def table(self) -> str:
        """Return each rule's AUC, and which share of the mismatches that it keeps matters, beside a blind choice."""
        rules = [*self.order, *self.decisions]
        blind, paid = self.draws @ self.important, {}
        for rule in rules:
            kept, important = self.curve(rule)
            for share in SHARES:
                if kept[0, -1] >= share:  # between two places of its knob, a rule mixes both
                    own = [np.interp(share, [0, *k], [0, *i]) for k, i in zip(kept, important, strict=True)]
                    paid[rule, share] = np.array(own) / share
        ps: dict[tuple[str, float], float] = {}
        for share in SHARES:
            own = [key for key in paid if key[1] == share]
            gaps = (paid[key] - blind for key in own)
            raw = [math.erfc(abs(gap[0]) / gap[1:].std() / math.sqrt(2)) for gap in gaps]
            ps |= zip(own, holm(raw), strict=True)
        lines = []
        for rule in sorted({*rules} & {*SHOWN}, key=lambda rule: paid[rule, 0.3][0]):
            cells = [rule, times(self.area(rule), 3) if rule in self.order else ""]
            for share in SHARES:
                if (rule, share) not in paid:
                    cells.append("")
                    continue
                gap = 100 * (paid[rule, share] - blind)
                text = signed((gap[0], *np.quantile(gap[1:], (0.025, 0.975))))
                cells.append(f"{100 * paid[rule, share][0]:.1f}: {f'**{text}**' if ps[rule, share] < 0.05 else text}")
            lines.append(cells)
        return markdown(("rule", "AUC", *(f"f = {x}" for x in SHARES)), lines)


def price() -> str:
    return Curves([x for x in rows("price") if x["texts"] == "two-shots"]).table()


def gate() -> str:
    """Return which scores tell, of whole answers, whether their mismatches matter."""
    kinds = {"no-shots": "GSM8K", "two-shots": "GSM8K, two examples", "code": "programs"}
    curves = [Curves([x for x in rows("gate") if x["texts"] == kind]) for kind in kinds]
    lines = [
        (rule, *(times(x.area(rule), 3) if np.isfinite(x.order[rule]).any() else "" for x in curves))
        for rule in curves[0].order
        if rule != "gate: judges so far"  # no better than the others, and a page is one screen
    ]
    return markdown(("what it is known from", *kinds.values()), lines)


def draw(path: Path) -> None:
    """Draw the share of the important mismatches that each rule keeps over the share of all."""
    curves = Curves([x for x in rows("price") if x["texts"] == "two-shots"])
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.add_subplot()
    matter = float(curves.draws[0] @ curves.important)
    axes.plot([0, 1], [0, 1], color="0.8", label="a blind choice")
    axes.plot([0, 1 - matter, 1], [0, 0, 1], color="0.5", linestyle=":", label="one that knows the labels")
    for rule in SHOWN:
        kept, important = curves.curve(rule)
        style, label = "o" if rule in curves.decisions else "-", rule.strip("`")
        axes.plot([0, *kept[0]], [0, *important[0] / matter], style, markersize=3, linewidth=1.4, label=label)
    axes.set(xlabel="share of the mismatches kept", ylabel="share of the important ones kept")
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=100)
