"""Plots of measured quality against cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

_MARKERS = "osD^vP*X"


@dataclass(frozen=True)
class PlotPoint:
    """A point with an interval in each direction, and a label."""

    x: tuple[float, float, float]  # value, low, high
    y: tuple[float, float, float]
    label: str = ""


Series = Mapping[str, Sequence[PlotPoint]]
"""Points by what they belong to."""


def plot(
    series: Series,
    xlabel: str,
    ylabel: str,
    path: Path,
    title: str = "",
    *,
    bottom: float | None = None,
    write_labels: Callable[[Any, Series], None] = lambda axes, series: None,
) -> None:
    """Draw points with their intervals, joined within each series; the vertical axis begins at ``bottom``.

    Series have matplotlib's colours C0, C1, … in their order.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for i, ((name, points), marker) in enumerate(zip(series.items(), cycle(_MARKERS))):
        points = sorted(points, key=lambda point: point.x)
        x, y = (np.array(values).T for values in zip(*((p.x, p.y) for p in points), strict=True))
        axes.errorbar(
            x[0], y[0], xerr=[x[0] - x[1], x[2] - x[0]], yerr=[y[0] - y[1], y[2] - y[0]], fmt=f"{marker}-",
            color=f"C{i % 10}", ecolor=(0, 0, 0, 0.25), capsize=2, elinewidth=0.6, label=name,
        )  # fmt: skip
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(title, fontsize=10)
    axes.margins(0.08)
    axes.set_ylim(bottom=bottom)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    write_labels(axes, series)
    figure.savefig(path, dpi=130)
