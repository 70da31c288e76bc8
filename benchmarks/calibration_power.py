"""``python -m benchmarks.calibration_power``: how often a certificate is wrong, and how many problems one takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hf_lossy_assist.calibration import bound, certify, select
from hf_lossy_assist.evaluation.calibration.betting import SHARES, growth_of, mixed

from . import command
from .outcome_matrix import by_rule, outcomes

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Losses ``(n, m)`` of m settings on n problems."""

LIMIT = 0.01
LIMITS = (1, 2, 5)
"""In points, for answers."""


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
        logs, seen, needed = np.zeros((1, len(SHARES))), 0, math.inf
        while seen < most and needed == math.inf:
            logs = logs[-1] + growth_of(draw(rng, _AT_ONCE), LIMIT).cumsum(0)
            over = mixed(logs) >= math.log(20)
            needed = seen + over.argmax() + 1 if over.any() else math.inf
            seen += _AT_ONCE
        found.append(needed)
    return float(np.median(found))


_AT_ONCE = 2000


def hoeffding_needed(mean: float) -> int:
    """Return how many problems Hoeffding's bound needs for an average sample."""
    return math.ceil(2 * math.log(20) / (LIMIT - mean) ** 2)


def bernstein_needed(mean: float, differ: float) -> int:
    """Return the same number for the empirical Bernstein bound (Maurer & Pontil 2009)."""
    variance, log = differ - mean**2, math.log(2 * 20)
    # The positive root of gap·x² - sqrt(2·variance·log)·x - 14/3·log, where x² is n, and n stands for n - 1.
    gap, root = LIMIT - mean, math.sqrt(2 * variance * log)
    return math.ceil(((root + math.sqrt(root**2 + 4 * gap * 14 / 3 * log)) / (2 * gap)) ** 2) + 1


def certified_shares(losses: np.ndarray, limit: float, problems: int, repeats: int, seed: int = 0) -> np.ndarray:
    """Return the share of calibrations that certify each setting, and then the share that certify any setting wrongly.

    Each is tested alone; the last is of tests in the order of the columns. ``losses`` ``(n, m)`` are the truth, of
    which every calibration draws as many ``problems``.
    """
    rng, bad = np.random.default_rng(seed), losses.mean(0) >= limit
    counts = np.zeros(losses.shape[1] + 1)
    growth = growth_of(losses.T[..., None], limit)  # (m, n, bettors)
    for _ in range(repeats):
        drawn = rng.integers(len(losses), size=problems)
        alone = np.array([_certified(own[drawn].cumsum(0)) for own in growth])
        in_order = np.logical_and.accumulate(alone)  # what `select` says of all columns
        counts += [*alone, (in_order & bad).any()]
    return counts / repeats


def _certified(logs: np.ndarray) -> bool:
    """Return `select`'s verdict on all bettors' wealth ``(n, bettors)``; their mixture is looked at where it counts."""
    richest, needed = logs.max(), math.log(20)
    return richest >= needed and (richest >= needed + math.log(len(SHARES)) or mixed(logs).max() >= needed)


def matrix_table(source: Path, problems: int, repeats: int) -> Table:
    """Lay out how often settings are certified, where all problems of a file or folder give the true losses."""
    _, scores = outcomes(source)
    reference, *labels = scores
    table = Table(title=f"{source.stem}: certified in % of {repeats} calibrations on {problems} problems each")
    table.add_column("setting")
    for name in ("true loss", *(f"{limit:g} points" for limit in LIMITS)):
        table.add_column(name, justify="right")
    wrong = []
    for settings in by_rule(labels).values():
        losses = np.stack([scores[reference] - scores[label] for label in settings], 1)
        shares = [certified_shares(losses, limit / 100, problems, repeats) for limit in LIMITS]
        for place, label in enumerate(settings):
            mean = 100 * losses[:, place].mean()
            marks = ("wrongly " if mean >= limit else "" for limit in LIMITS)
            cells = (f"{mark}{100 * own[place]:.1f}" for mark, own in zip(marks, shares, strict=True))
            table.add_row(label, f"{mean:.2f}", *cells)
        wrong.append([own[-1] for own in shares])
    table.add_row("a rule's settings in order: any wrongly", "", *(f"{100 * most:.1f}" for most in np.max(wrong, 0)))
    return table


def fresh_table(source: Path) -> Table:
    """Lay out each rule's boldest certified setting for each limit; a rule's settings go from cautious to bold."""
    ids, scores = outcomes(source)
    reference, *labels = scores
    half, rules = len(ids) // 2, by_rule(labels)
    losses = {label: scores[reference] - scores[label] for label in labels}
    table = Table(title=f"{source.stem}: certified on {half} problems with 95 %, measured on {len(ids) - half} others")
    for name in ("limit (points)", "boldest certified", "measured", "at most", "on the others", "those: at most"):
        table.add_column(name, justify="right")
    for limit in LIMITS:
        found = certify(
            {rule: [losses[label][:half] for label in settings] for rule, settings in rules.items()}, limit / 100
        )
        for rule, certified in found.items():
            if not certified:
                table.add_row(f"{limit:g}", f"none of {rule}", "", "", "", "")
                continue
            label = rules[rule][len(certified) - 1]
            own = (
                losses[label][:half].mean(),
                certified[-1][0],
                losses[label][half:].mean(),
                bound(losses[label][half:]),
            )
            table.add_row(f"{limit:g}", label, *(f"{100 * value:.2f}" for value in own))
    return table


def main(
    repeats: Annotated[int, typer.Option(min=10, help="Simulated calibrations of each distribution of losses.")] = 1000,
    problems: Annotated[int, typer.Option(min=10, help="Problems of each simulated calibration.")] = 3000,
    answers: Annotated[
        list[Path] | None,
        typer.Option(help="Resample the answers in this folder of `evaluate`, or file of outcome_matrix. Repeatable."),
    ] = None,
) -> None:
    """Tabulate wrong certificates over simulated repeats, and the problems needed beside other bounds.

    With --answers, only those answers are resampled, and their mean loss is the true loss. A second table certifies
    settings on the first half of the answers, and shows their loss on the second half.
    """
    screen = Console()
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)
    for source in answers or ():
        screen.print(matrix_table(source, problems, repeats))
        screen.print(fresh_table(source))
    if answers:
        screen.print(f"wrong certificates may be {100 * most:.1f} %: 5 % and three standard errors")
        return
    table = Table(title=f"Wrongly certified at 1 point and 95 %, in {repeats} repeats of {problems} problems")
    table.add_column("losses")
    table.add_column(f"share (at most {100 * most:.1f} %)", justify="right")
    for name, (draw, first_bad) in LAWS.items():
        table.add_row(name, f"{100 * wrongly_certified(draw, first_bad, problems, repeats):.1f} %")
    screen.print(table)
    table = Table(title="Problems until certified at 1 point and 95 % (median of 40)")
    for name in ("true loss (points)", "answers that differ", "betting", "Bernstein", "Hoeffding", "share"):
        table.add_column(name, justify="right")
    for mean in (0.0, 0.0025, 0.005, 0.0075):
        for differ in (mean, *(share for share in (0.01, 0.03, 0.1) if share > mean)):
            needed, usual = problems_needed(mean, differ, 40), hoeffding_needed(mean)
            table.add_row(
                f"{100 * mean:g}", f"{100 * differ:g} %", f"{needed:,.0f}", f"{bernstein_needed(mean, differ):,}",
                f"{usual:,}", f"{needed / usual:.3f}",
            )  # fmt: skip
    screen.print(table)


app = command(main)

if __name__ == "__main__":
    app()
