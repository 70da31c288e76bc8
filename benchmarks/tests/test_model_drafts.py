"""The table of drafters that models bring."""

from __future__ import annotations

from benchmarks.model_drafts import RULES, app
from benchmarks.tests.running import run


def test_the_table_is_written(tmp_path):
    out = tmp_path / "drafts.md"
    run(app, "--only", "look-up,mimo", "--max-new-tokens", 8, "--out", out)
    head, _, *rows = [
        line.strip("| ").split(" | ") for line in out.read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    assert len(head) == 9
    looked_up, with_mtp = rows
    assert looked_up[:2] == ["look-up", "the bundled pair"]
    assert looked_up[3] == looked_up[5] == with_mtp[3] == with_mtp[5] == "yes"
    assert "fsd" in looked_up[7]  # it compares whole distributions
    assert with_mtp[0] == "MTP"
    assert with_mtp[7].startswith(f"{len(RULES)} of")
    assert with_mtp[8] == "1"
    assert float(with_mtp[2]) > 0
