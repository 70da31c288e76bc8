"""``lossy-assist demo``."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from hf_lossy_assist import pairs
from hf_lossy_assist.cli import app
from hf_lossy_assist.cli.demo import SHOWN, demo_modes
from hf_lossy_assist.tasks import Arithmetic

MODES = (
    "target alone",
    "lossless",
    "dropmatch",
    "criterion=naive",
    "topk (k=2)",
    "typical",
    "relaxed",
    "ensemble",
    "ears",
)
ROW = re.compile(
    r"^│ (?P<mode>.*?) +│ +(?P<accuracy>[\d.]+) % │ *(?P<kept>[\d.]*) │ *(?P<tokens>[\d.]*) │ +(?P<speed>\d+) │"
)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["demo", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(printed: str) -> dict[str, re.Match[str]]:
    return {row["mode"]: row for row in map(ROW.match, printed.splitlines()) if row}


def test_every_mode_is_compared(bundled, monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 6)
    printed = run("--problems", "2", "--gamma", "3")
    rows = rows_of(printed)
    assert len(rows) == len(demo_modes({}, 3))
    for mode in MODES:
        assert any(mode in title for title in rows)
    assert not rows["target alone"]["kept"]
    assert 0 <= float(rows["lossless"]["kept"]) <= 3
    assert "2 problems, 3 drafted tokens per round" in printed
    assert pairs.load("arithmetic").task.examples("test", 1)[0].prompt.split("\n")[0][:60] in printed


def test_the_bundled_pair_shows_what_lossy_rules_do():
    rows = rows_of(run("--problems", "4"))
    assert rows["lossless"]["accuracy"] == rows["target alone"]["accuracy"]
    for lossy in ("dropmatch", "topk (k=2)"):
        assert float(rows[lossy]["kept"]) > float(rows["lossless"]["kept"])


def test_modes_with_a_head_need_one():
    labels = [mode.label for mode in demo_modes({}, 3)]
    heads = pairs.load("arithmetic").rule_heads
    more = [mode.label for mode in demo_modes(heads, 3)]
    assert set(more) - set(labels) == {"judge (threshold=0.2)", "sprinter (threshold=0.9)"}
    assert len(set(more)) == len(more)
    assert set(SHOWN) <= set(labels)
    assert {mode.gamma for mode in demo_modes(heads, 3)} == {None, 3}
