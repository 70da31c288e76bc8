"""What labels cost, with the same prompts mined in several ways."""

from __future__ import annotations

from benchmarks import label_costs
from benchmarks.tests.running import run
from hf_lossy_assist.store.folder import read_lines


def test_all_ways_find_the_same_labels(tmp_path):
    output = run(
        label_costs.app, "--limit", 3, "--batch-size", 2, "--repeats", 1, "--out", tmp_path / "rows.jsonl"
    ).output
    rows = [row for _, row in read_lines(tmp_path / "rows.jsonl")]
    assert len(rows) == 4
    for row in rows:
        assert row["agree"] == row["prompts"] == 3
        assert row["labels"] == rows[0]["labels"] > 0
        assert len(row["seconds"]) == 1
        assert f"({min(row['seconds']):.1f} … {max(row['seconds']):.1f})" in output
