"""``lossy-assist demo``."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from hf_lossy_assist import pairs
from hf_lossy_assist.cli import app, demo
from hf_lossy_assist.cli.demo import MODES, SHOWN
from hf_lossy_assist.evaluation.evaluate import named_modes
from hf_lossy_assist.tasks import Arithmetic

ROW = re.compile(
    r"^ (?P<mode>\S+) +(?P<n>\d+) +(?P<score>[\d.]+)  (?P<interval>.*?) +(?P<kept>[\d.]+) +[\d.]+ +(?P<calls>[\d.]+) ",
    re.MULTILINE,
)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["demo", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(printed: str) -> dict[str, re.Match[str]]:
    return {row["mode"]: row for row in ROW.finditer(printed)}


def test_untrained_models_are_compared_too(bundled, monkeypatch):
    """Neither answers anything right; a question is shown all the same."""
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 6)
    monkeypatch.setattr(demo, "MODES", "plain,lossless@3,topk@3")
    monkeypatch.setattr(demo, "SHOWN", ("plain", "topk@3"))
    printed = run("--problems", "2")
    rows = rows_of(printed)
    assert list(rows) == ["plain", "lossless@3", "topk@3"]
    assert rows["plain"]["calls"] == "100.0"
    assert all(re.fullmatch(r"[+-][\d.]+ \([+-][\d.]+ to [+-][\d.]+\)", rows[m]["interval"]) for m in list(rows)[1:])
    assert pairs.load("arithmetic").task.examples("test", 1)[0].prompt.split("\n")[0][:60] in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_bundled_pair_shows_what_lossy_rules_do():
    printed = run("--problems", "4")
    rows = rows_of(printed)
    assert list(rows) == MODES.split(",")
    assert rows["lossless@16"]["score"] == rows["plain"]["score"]
    for lossy in ("min_p@16", "judge@16", "typical@16"):
        assert float(rows[lossy]["kept"]) > float(rows["lossless@16"]["kept"])
        assert float(rows[lossy]["calls"]) < float(rows["lossless@16"]["calls"])
    asked = [int(calls) for calls in re.findall(r"(\d+) calls", printed)]
    assert len(asked) == len(SHOWN)
    assert asked == sorted(asked, reverse=True)
    assert printed.count("right") >= 2  # the target alone and the lossy rule answer the question that is shown
    assert "«" in printed


def test_every_rule_drafts_as_far_as_the_longest_draft_of_lossless():
    longest = {mode.rule: mode.gamma for mode in named_modes(MODES)}
    assert len(set(longest.values()) - {None}) == 1
    assert set(SHOWN) <= set(MODES.split(","))


@pytest.mark.parametrize("problems", ["0", "-1"])
def test_at_least_one_problem_is_answered(problems):
    assert CliRunner().invoke(app, ["demo", "--problems", problems]).exit_code == 2
