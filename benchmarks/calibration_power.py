"""How often a calibration certifies what it must not, and how many problems it takes.

``python -m benchmarks.calibration_power``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hf_lossy_assist.calibration import select
from hf_lossy_assist.calibration.betting import SHARES
from hf_lossy_assist.evaluation.answers import load_answers

from . import command

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Losses ``(n, m)`` of m settings on n problems."""

LIMIT = 0.01


def answers_law(mean: float, differ: float) -> Draw:
    """Return right-or-wrong answers, of which a share ``differ`` differs, with that mean loss."""
    return lambda rng, n: rng.choice([1.0, -1.0, 0.0], (n, 1), p=[(differ + mean) / 2, (differ - mean) / 2, 1 - differ])


def heavy_law(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return losses that are mostly small gains, and seldom a whole loss, with the mean of the limit."""
    rare = rng.random((n, 1)) < 0.02
    return np.where(rare, 1.0, (LIMIT - 0.02) / 0.98)


def path_law(means: tuple[float, ...], differ: float = 0.1) -> Draw:
    """Return settings with these means whose losses on a problem depend on each other."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        u = rng.random((n, 1))
        lost = (differ + np.array(means)) / 2
        return np.where(u < lost, 1.0, np.where(u > 1 - (differ - np.array(means)) / 2, -1.0, 0.0))

    return draw


LAWS: Mapping[str, tuple[Draw, int]] = {
    "at the limit, 3 % differ": (answers_law(LIMIT, 0.03), 0),
    "at the limit, nothing gained": (answers_law(LIMIT, LIMIT), 0),
    "heavy-tailed, at the limit": (heavy_law, 0),
    "continuous, just above": (lambda rng, n: np.clip(rng.normal(0.0105, 0.3, (n, 1)), -1, 1), 0),
    "a path that rises": (path_law((-0.02, 0.0, 0.0101, 0.05)), 2),
    "a path that rises and falls": (path_law((-0.02, 0.0101, 0.0, 0.03)), 1),
}
"""Laws of losses, and the first setting of each that must not be certified."""


def wrongly_certified(draw: Draw, first_bad: int, problems: int, repeats: int, seed: int = 0) -> float:
    """Return in what share of the repeats a setting is certified whose loss is at the limit or above."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(repeats):
        last = select(draw(rng, problems), LIMIT)
        wrong += last is not None and last >= first_bad
    return wrong / repeats


def problems_needed(mean: float, differ: float, repeats: int, most: int = 200_000, seed: int = 0) -> float:
    """Return the median number of problems until a setting of that mean loss is certified at the limit."""
    rng = np.random.default_rng(seed)
    draw, found = answers_law(mean, differ), []
    for _ in range(repeats):
        losses = draw(rng, most)[:, 0]
        wealth = np.full(most, -np.inf)
        for share in SHARES:
            with np.errstate(divide="ignore"):
                own = np.log1p(np.maximum(share * (LIMIT - losses) / (1 - LIMIT), -1)).cumsum()
            wealth = np.logaddexp(wealth, own - math.log(len(SHARES)))
        over = wealth >= math.log(20)
        found.append(over.argmax() + 1 if over.any() else math.inf)
    return float(np.median(found))


def hoeffding_needed(mean: float) -> int:
    """Return how many problems Hoeffding's bound needs, if all goes as on average."""
    return math.ceil(2 * math.log(20) / (LIMIT - mean) ** 2)


def resampled(folder: Path, rng: np.random.Generator) -> tuple[Draw, list[str], np.ndarray]:
    """Return draws of whole problems from a folder of ``evaluate``, its modes, and their true mean losses there."""
    plan, answers = load_answers(folder)
    scores: dict[str, dict[int, float]] = {}
    for answer in answers:
        scores.setdefault(answer.mode, {})[answer.id] = answer.score
    reference = scores.pop(plan["reference"])
    labels = [label for label in plan["modes"] if label in scores]
    ids = sorted(set(reference).intersection(*map(set, scores.values())))
    losses = np.array([[reference[i] - scores[label][i] for label in labels] for i in ids])
    return (lambda rng, n: losses[rng.integers(len(losses), size=n)]), labels, losses.mean(0)


def main(
    repeats: Annotated[int, typer.Option(min=10, help="Simulated calibrations of each law.")] = 1000,
    problems: Annotated[int, typer.Option(min=10, help="Problems of each, for validity.")] = 3000,
    answers: Annotated[
        Path | None, typer.Option(help="Also resample the answers in this folder of `evaluate`.")
    ] = None,
) -> None:
    """Tabulate wrong certificates over simulated repeats, and the problems needed beside Hoeffding's bound."""
    screen = Console()
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)
    table = Table(title=f"Wrongly certified at 1 point and 95 %, in {repeats} repeats of {problems} problems")
    table.add_column("losses")
    table.add_column(f"share (at most {100 * most:.1f} %)", justify="right")
    for name, (draw, first_bad) in LAWS.items():
        table.add_row(name, f"{100 * wrongly_certified(draw, first_bad, problems, repeats):.1f} %")
    if answers is not None:
        draw, labels, means = resampled(answers, np.random.default_rng(0))
        for i, label in enumerate(labels):
            if means[i] >= LIMIT:
                share = wrongly_certified(lambda rng, n, i=i: draw(rng, n)[:, [i]], 0, problems, repeats)
                table.add_row(f"{label} of {answers.name}, {100 * means[i]:.2f} points", f"{100 * share:.1f} %")
    screen.print(table)
    table = Table(title="Problems until certified at 1 point and 95 % (median of 40)")
    for name in ("true loss (points)", "answers that differ", "betting", "Hoeffding", "share"):
        table.add_column(name, justify="right")
    for mean in (0.0, 0.0025, 0.005, 0.0075):
        for differ in (mean, 0.01, 0.03, 0.1):
            needed, usual = problems_needed(mean, differ, 40), hoeffding_needed(mean)
            table.add_row(
                f"{100 * mean:g}", f"{100 * differ:g} %", f"{needed:,.0f}", f"{usual:,}", f"{needed / usual:.3f}"
            )
    screen.print(table)


app = command(main)

if __name__ == "__main__":
    app()
