"""Pictures."""

from __future__ import annotations

from hf_lossy_assist.evaluation.tables import PlotPoint, plot


def test_a_picture_is_written(tmp_path):
    point = PlotPoint((1.0, 0.9, 1.2), (5.0, 4.0, 6.0))
    plot({"one": point, "two": point}, "x", "y", tmp_path / "plot.png", "title", bottom=0, limit=1.0)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
