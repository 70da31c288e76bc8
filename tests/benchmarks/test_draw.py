"""Pictures drawn again from rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.draw import app
from tests.benchmarks.running import README, run

SUMMARIES = [path for path in README.parent.rglob("*.json") if path.name not in ("summary.json", "manifest.json")]
ROWS = sorted([*README.parent.rglob("bench.jsonl"), *SUMMARIES])


@pytest.mark.parametrize("rows", ROWS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_committed_rows_are_drawn(rows: Path, tmp_path: Path):
    shutil.copy(rows, tmp_path)
    run(app, tmp_path)
    assert (tmp_path / rows.name).with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert rows.with_suffix(".png").exists()
