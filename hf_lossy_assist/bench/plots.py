"""Speed against quality, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .standings import Spread


@dataclass(frozen=True)
class Point:
    """One contender.

    Attributes
    ----------
    label
        What stands beside it.
    x, x_low, x_high
        Quality, and its interval.
    speed
        Tokens per second.
    """

    label: str
    x: float
    x_low: float
    x_high: float
    speed: Spread


def plot_speed(points: Sequence[Point], xlabel: str, title: str, path: Path) -> None:
    """Draw tokens per second against quality, with the spread of both, and save it.

    Parameters
    ----------
    points
        The contenders.
    xlabel, title
        What the horizontal axis shows, and what was measured.
    path
        A PNG file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    for i, point in enumerate(points):
        axes.errorbar(
            point.x,
            point.speed.median,
            xerr=[[point.x - point.x_low], [point.x_high - point.x]],
            yerr=[[point.speed.median - point.speed.low], [point.speed.high - point.speed.median]],
            fmt="o",
            color=f"C{i % 10}",
            ecolor=(0, 0, 0, 0.25),
            capsize=2,
            label=point.label,
        )
        axes.annotate(point.label, (point.x, point.speed.median), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("tokens per second (median; bars: least and largest of the repeats)")
    axes.set_title(title, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
