"""``lossy-assist windows``."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from hf_lossy_assist.cli import app


def test_the_command_compares_with_the_automatic_window(tmp_path):
    out = tmp_path / "rows.jsonl"
    result = CliRunner().invoke(app, ["windows", "--gammas", "2,6", "--problems", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("gamma") for row in rows] == [None, 2, 6, "auto"]
    assert "× best" in result.stdout
