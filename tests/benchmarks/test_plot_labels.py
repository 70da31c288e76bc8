"""Where the labels of a picture stand."""

from __future__ import annotations

import random

import pytest

from benchmarks.plot_labels import place_labels, write_labels
from hf_lossy_assist.evaluation.plots import PlotPoint, plot

FRAME = (0.0, 0.0, 400.0, 300.0)


def boxes(spots, sizes):
    for (x, y), (width, height), (dx, dy) in zip(spots, sizes, place_labels(spots, sizes, FRAME), strict=True):
        yield x + dx - width / 2, y + dy - height / 2, x + dx + width / 2, y + dy + height / 2


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize("spread", [0, 2, 10, 40], ids=lambda spread: f"within {spread}")
def test_labels_of_a_crowd_cover_neither_each_other_nor_a_point_nor_leave_the_picture(spread):
    rng = random.Random(spread)
    for centre in ((200, 150), (395, 150), (5, 295)):
        spots = [tuple(c + rng.uniform(-spread, spread) for c in centre) for _ in range(9)]
        spots = [(min(max(x, 2), 398), min(max(y, 2), 298)) for x, y in spots]
        placed = list(boxes(spots, [(28, 8)] * 9))
        assert not any(overlap(a, b) for i, a in enumerate(placed) for b in placed[:i])
        assert not any(overlap(box, (x, y, x, y)) for box in placed for x, y in spots)
        assert all(b[0] >= 0 and b[1] >= 0 and b[2] <= 400 and b[3] <= 300 for b in placed)


def test_a_lone_label_stands_right_beside_its_point():
    ((x, y),) = place_labels([(200, 150)], [(28, 8)], FRAME)
    assert abs(x) <= 20
    assert abs(y) <= 10


def test_a_picture_with_labels_is_written(tmp_path):
    point = PlotPoint((1.0, 0.9, 1.2), (5.0, 4.0, 6.0), "τ=1")
    series = {"one": [point], "two": [point, point]}
    plot(series, "x", "y", tmp_path / "plot.png", "title", bottom=0, write_labels=write_labels)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
