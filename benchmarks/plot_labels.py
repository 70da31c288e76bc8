"""Labels beside the points of a plot, placed so that they cover neither points nor each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hf_lossy_assist.evaluation.plots import Series

_GAP = 3.0

Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


def write_labels(axes: Any, series: Series) -> None:
    """Write every point's label into the axes of :func:`~hf_lossy_assist.evaluation.plots.plot`."""
    coloured = ((point, f"C{i % 10}") for i, points in enumerate(series.values()) for point in points)
    points = [(point, colour) for point, colour in coloured if point.label]
    axes.figure.draw_without_rendering()  # gives texts and axes their sizes
    unit = axes.figure.dpi / 72
    texts = [
        axes.annotate(
            point.label, (point.x[0], point.y[0]), (0, 0), textcoords="offset points", fontsize=7, ha="center",
            va="center", color=colour, arrowprops={"arrowstyle": "-", "lw": 0.4, "color": colour, "shrinkA": 0},
            bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "linewidth": 0, "alpha": 0.7}, zorder=5,
        )
        for point, colour in points
    ]  # fmt: skip
    spots = [tuple(axes.transData.transform(text.xy) / unit) for text in texts]
    extents = [text.get_window_extent() for text in texts]
    sizes = [(extent.width / unit, extent.height / unit) for extent in extents]
    frame = tuple(value / unit for value in axes.get_window_extent().extents)
    for text, offset in zip(texts, place_labels(spots, sizes, frame), strict=True):
        text.xyann = offset


def place_labels(
    spots: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], frame: Box
) -> list[tuple[float, float]]:
    """Return each label's offset from its point: close by, in the frame, covering no point and no other label.

    ``spots`` are the points, ``sizes`` the labels' widths and heights, in the unit of ``frame``.

    Examples
    --------
    >>> place_labels([(50, 50), (50, 50)], [(20, 8), (20, 8)], (0, 0, 100, 100))
    [(6.123, 9.239), (-6.123, -9.239)]
    """
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    offsets = []
    for (x, y), (width, height) in zip(spots, sizes, strict=True):

        def box(offset: tuple[float, float]) -> Box:
            left, low = x + offset[0] - width / 2, y + offset[1] - height / 2  # noqa: B023
            return left, low, left + width, low + height  # noqa: B023

        best = min(_offsets(width, height), key=lambda offset: _cost(box(offset), taken, frame))
        offsets.append(best)
        taken.append(box(best))
    return offsets


def _offsets(width: float, height: float) -> Iterator[tuple[float, float]]:
    for ring in range(12):
        across, up = width / 2 + 6 + 10 * ring, height / 2 + 6 + 10 * ring
        for turn in range(16):
            angle = math.pi * (0.25 + turn / 8)
            yield round(across * math.cos(angle), 3) + 0.0, round(up * math.sin(angle), 3) + 0.0


def _cost(box: Box, taken: Sequence[Box], frame: Box) -> int:
    left, low, right, top = box
    outside = left < frame[0] or low < frame[1] or right > frame[2] or top > frame[3]
    return outside + sum(left < b[2] + _GAP and b[0] < right + _GAP and low < b[3] and b[1] < top for b in taken)
