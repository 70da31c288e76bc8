"""``lossy-assist demo``."""

from __future__ import annotations

import re

from hf_lossy_assist import pairs
from hf_lossy_assist.cli import demo
from hf_lossy_assist.cli.demo import MODES
from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.result import EvaluationResult, baselines_of
from hf_lossy_assist.tasks import Arithmetic
from tests.cli.running import invoke

ROW = re.compile(r"^ (?P<mode>\S+) +\d+ +(?P<score>[\d.]+) ", re.MULTILINE)
WORK = re.compile(r"^ (?P<mode>\S+) +(?P<round>\d+\.\d\d) +\d+ ", re.MULTILINE)


def run(problems: int) -> str:
    result = invoke(["demo", "--limit", str(problems)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(printed: str, row: re.Pattern[str] = ROW) -> dict[str, re.Match[str]]:
    return {found["mode"]: found for found in row.finditer(printed)}


def shown_of(**right: str) -> tuple[str, ...]:
    """Return what is shown of answers of 12 tokens, "1" for every right one, at each mode's tokens per second."""
    speeds = {"plain": 10, "lossless@4": 15, "lossless@8": 16, "min_p@16": 24, "typical@16": 40}
    answers = [
        Answer(mode, i, float(right.get(mode, "1" * 9)[i]), 12, 4, 8, 12 / speed, "")
        for mode, speed in speeds.items()
        for i in range(9)
    ]
    return demo.shown_of(EvaluationResult.of(answers, "plain", baselines_of(parse_modes(",".join(speeds)))))


def test_the_fastest_rule_with_no_loss_shown_is_shown():
    worse = "0" * 9
    assert shown_of() == shown_of(**{"min_p@16": worse, "typical@16": worse}) == ("plain", "lossless@8", "typical@16")
    assert shown_of(**{"typical@16": worse}) == ("plain", "lossless@8", "min_p@16")


def test_untrained_models_are_compared_too(bundled, monkeypatch):
    """Neither answers anything right; a question is shown all the same."""
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 6)
    monkeypatch.setattr(demo, "MODES", "plain,lossless@3,topk@3")
    printed = run(2)
    rows = rows_of(printed)
    assert list(rows) == ["plain", "lossless@3", "topk@3"]
    assert pairs.load("arithmetic").task.examples("test", 1)[0].prompt.split("\n")[0][:60] in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_bundled_pair_shows_what_lossy_rules_do(monkeypatch):
    rules = ("min_p@16", "judge@16")
    monkeypatch.setattr(demo, "MODES", ",".join(("plain", "lossless@8", "lossless@16", *rules)))
    printed = run(3)
    rows = rows_of(printed)
    assert list(rows) == demo.MODES.split(",")
    assert rows["lossless@16"]["score"] == rows["plain"]["score"]
    tokens = {label: float(row["round"]) for label, row in rows_of(printed, WORK).items()}
    assert tokens["plain"] == 1
    assert tokens["lossless@16"] < min(tokens[lossy] for lossy in rules)
    asked = [int(calls) for calls in re.findall(r"(\d+) calls", printed)]
    assert len(asked) == 3
    assert asked == sorted(asked, reverse=True)
    assert printed.count("right") >= 2  # the target alone and the lossy rule answer the question that is shown
    assert "«" in printed
    said = " ".join(printed[printed.index("Verdict") :].split())
    assert re.search(r"`lossless@\d+` was called fewer than 4 times, .* its speed, and 3 problems are too few", said)


def test_every_rule_drafts_as_far_as_the_longest_draft_of_lossless():
    longest = {mode.rule: mode.gamma for mode in parse_modes(MODES)}
    assert len(set(longest.values()) - {None}) == 1
