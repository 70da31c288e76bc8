"""``lossy-assist demo``."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from hf_lossy_assist import pairs
from hf_lossy_assist.cli import app, demo
from hf_lossy_assist.cli.demo import SHOWN, demo_modes
from hf_lossy_assist.tasks import Arithmetic

ROW = re.compile(
    r"^ (?P<mode>\S.*?)  +(?P<accuracy>[\d.]+) % (?P<kept> +[\d.]+  +[\d.]+ |) +(?P<speed>\d+) ", re.MULTILINE
)


def run(*arguments: str):
    result = CliRunner().invoke(app, ["demo", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result


def rows_of(printed: str) -> dict[str, re.Match[str]]:
    return {row["mode"]: row for row in ROW.finditer(printed)}


def test_every_mode_is_compared(bundled, monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 6)
    result = run("--problems", "2", "--gamma", "3")
    printed, modes = result.stdout, [mode.label for mode in demo_modes({}, 3)]
    assert list(rows_of(printed)) == modes
    assert not rows_of(printed)["target alone"]["kept"]
    assert 0 <= float(rows_of(printed)["lossless"]["kept"].split()[0]) <= 3
    assert "2 problems, 3 drafted tokens per round" in printed
    assert printed.startswith(f"loading the bundled pair\nanswering 2 problems in {len(modes)} modes each\n")
    assert "comparing: " in result.stderr
    assert max(map(len, printed.splitlines())) <= 80
    assert pairs.load("arithmetic").task.examples("test", 1)[0].prompt.split("\n")[0][:60] in printed


def test_the_bundled_pair_shows_what_lossy_rules_do(monkeypatch):
    modes = [mode for mode in demo_modes({}, 8) if mode.label in ("lossless", *SHOWN)]
    monkeypatch.setattr(demo, "demo_modes", lambda heads, gamma: modes)
    rows = rows_of(run("--problems", "2").stdout)
    assert rows["lossless"]["accuracy"] == rows["target alone"]["accuracy"]
    for lossy in ("dropmatch", "topk (k=2)"):
        assert float(rows[lossy]["kept"].split()[0]) > float(rows["lossless"]["kept"].split()[0])


def test_modes_with_a_head_need_one():
    labels = [mode.label for mode in demo_modes({}, 3)]
    heads = pairs.load("arithmetic").rule_heads
    more = [mode.label for mode in demo_modes(heads, 3)]
    assert set(more) - set(labels) == {"judge (threshold=0.2)"}
    assert len(set(more)) == len(more)
    assert set(SHOWN) <= set(labels)
    assert {mode.gamma for mode in demo_modes(heads, 3)} == {None, 3}
