"""Measured quality against cost, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

_MARKERS = "osD^vP*X"
# Where a label may stand beside its point, in units of 1/72 inch, nearest first.
_DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
_OFFSETS = [(r * dx, r * dy) for r in (10, 16, 24, 32, 44) for dx, dy in _DIRECTIONS]


@dataclass(frozen=True)
class PlotPoint:
    """A point with an interval in each direction, and what stands beside it, if anything."""

    x: tuple[float, float, float]
    y: tuple[float, float, float]
    label: str = ""


def plot(series: dict[str, Sequence[PlotPoint]], xlabel: str, ylabel: str, path: Path, title: str = "") -> None:
    """Draw points with their intervals, joined within a series; names of series stand in a legend beside the picture.

    Parameters
    ----------
    series
        Points by the name of what they belong to; a value is ``(it, the interval's low, high)``.
    xlabel, ylabel, title
        What is shown.
    path
        A PNG file.
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
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    _label(axes, [point for points in series.values() for point in points if point.label])
    figure.savefig(path, dpi=130)


def _label(axes: Any, points: Sequence[PlotPoint]) -> None:
    """Write every label where it covers neither a point nor another label, as near its point as can be."""
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()  # sizes and places are known only now
    scale = axes.figure.dpi / 72
    spots = [axes.transData.transform((point.x[0], point.y[0])) for point in points]
    taken = [Bbox.from_bounds(x - 4 * scale, y - 4 * scale, 8 * scale, 8 * scale) for x, y in spots]
    for point, spot in zip(points, spots, strict=True):
        text = axes.annotate(
            point.label, (point.x[0], point.y[0]), (0, 0), textcoords="offset points", fontsize=7, ha="center",
            va="center", arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "grey", "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip
        own = text.get_window_extent()
        places = [
            Bbox.from_bounds(
                spot[0] + dx * scale - own.width / 2, spot[1] + dy * scale - own.height / 2, own.width, own.height
            )
            for dx, dy in _OFFSETS
        ]
        covered = [sum(place.overlaps(box) for box in taken) for place in places]
        best = covered.index(min(covered))
        text.xyann = _OFFSETS[best]
        taken.append(places[best])
