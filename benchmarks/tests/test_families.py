"""The table of families with recurrent states."""

from __future__ import annotations

from benchmarks.families import COLUMNS, app
from benchmarks.tests.running import run


def test_the_table_is_written(tmp_path):
    out = tmp_path / "families.md"
    run(app, "--only", "Mamba2,Mamba,Rwkv", "--max-new-tokens", 6, "--out", out)
    rows = [line.strip("| ").split(" | ") for line in out.read_text(encoding="utf-8").splitlines() if "|" in line]
    table = {row[0]: dict(zip(COLUMNS, row, strict=False)) for row in rows}
    assert table["Rwkv"]["as a target"].startswith("no: ")
    assert table["Mamba"]["as a draft"] == "yes" or table["Mamba"]["as a draft"].startswith("no: ")
    assert table["Mamba2"]["as a target"].startswith("no: ") or table["Mamba2"]["equal to plain"] == "yes"
