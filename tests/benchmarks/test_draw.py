"""Pictures drawn again from rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.draw import app
from tests.benchmarks.running import README, run

ROWS = sorted(README.parent.rglob("*.jsonl"))


@pytest.mark.parametrize("rows", ROWS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_committed_rows_are_drawn(rows: Path, tmp_path: Path):
    shutil.copy(rows, tmp_path)
    run(app, tmp_path)
    assert (tmp_path / rows.name).with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert rows.with_suffix(".png").exists()


def test_committed_trade_offs_have_no_speeds():
    swept = [path for path in ROWS if path.stem.startswith("trade-off")]
    assert len(swept) == 2
    for path in swept:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert not any("seconds" in row for row in rows)
