"""``lossy-assist demo``."""

from __future__ import annotations

import re

import pytest

from hf_lossy_assist import pairs
from hf_lossy_assist.cli import demo
from hf_lossy_assist.cli.demo import MODES, verdict_of
from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.quality import paired_interval
from hf_lossy_assist.evaluation.result import EvaluationResult
from hf_lossy_assist.evaluation.scores import baselines_of
from hf_lossy_assist.tasks import Arithmetic
from tests.cli.running import invoke

ROW = re.compile(
    r"^ (?P<mode>\S+) +(?P<n>\d+) +(?P<score>[\d.]+)  (?P<interval>.*?) +(?P<kept>[\d.]+) +[\d.]+ +(?P<calls>[\d.]+) ",
    re.MULTILINE,
)
SIZE = 3
"""Problems a batch, in the answers that are made up."""


def run(problems: int) -> str:
    result = invoke(["demo", "--limit", str(problems)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(printed: str) -> dict[str, re.Match[str]]:
    return {row["mode"]: row for row in ROW.finditer(printed)}


def result_of(speeds: dict[str, list[float]], right: dict[str, str]) -> EvaluationResult:
    """Return answers of 12 tokens: each mode's tokens per second by batch, and "1" for every right answer."""
    answers = [
        Answer(mode, i, float(right.get(mode, "1" * 9)[i]), 12, 4, 8, 12 / speeds[mode][i // SIZE], "")
        for mode in speeds
        for i in range(9)
    ]
    baselines = baselines_of(parse_modes(",".join(speeds)))
    return EvaluationResult.of(answers, "plain", baselines=baselines, batch_size=SIZE)


SPEEDS = {
    "plain": [10, 10, 10],
    "lossless@4": [15, 15, 15],
    "lossless@8": [20, 10, 20],
    "lossless@16": [16, 16, 16],
    "min_p@16": [24, 24, 24],
    "typical@16": [40, 40, 40],
}
PLAIN, MENDED, WORSE = "110110110", "111111100", "000000000"


def verdict(speeds=SPEEDS, **right: str) -> tuple[tuple[str, ...], str]:
    return verdict_of(result_of(speeds, right))


def test_the_verdict_names_the_fastest_rule_that_is_not_shown_to_lose():
    shown, words = verdict(**{"plain": PLAIN, "min_p@16": MENDED, "typical@16": WORSE})
    assert shown == ("plain", "lossless@16", "min_p@16")
    _, low, high = (100 * end for end in paired_interval([*map(int, MENDED)], [*map(int, PLAIN)]))
    assert f"by +11.1 ({low:+.1f} to {high:+.1f}) points" in words
    assert "1.50 × as fast as lossless@16, the fastest lossless setting" in words
    assert "2.40 × as fast as the target alone" in words
    assert "No rule" not in words
    assert "2 problems right that the target alone gets wrong, and 1 the other way round" in words
    assert "may score above its target" in words


def test_the_verdict_says_what_is_lost_and_what_is_not_gained():
    shown, words = verdict(**dict.fromkeys(("min_p@16", "typical@16"), WORSE))
    assert shown[2] == "typical@16"
    assert "Every rule is shown to lose points" in words
    assert "may score above its target" not in words


@pytest.mark.parametrize("speeds", [[10, 9, 8], [40, 9, 14]], ids=["slower", "faster, but not in every batch"])
def test_a_winner_needs_an_interval_above_1(speeds):
    _, words = verdict({label: SPEEDS[label] for label in ("plain", "lossless@16")} | {"topk@16": speeds})
    assert words.startswith("No rule is shown to be faster than lossless@16, the fastest lossless setting.")


def test_untrained_models_are_compared_too(bundled, monkeypatch):
    """Neither answers anything right; a question is shown all the same."""
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 6)
    monkeypatch.setattr(demo, "MODES", "plain,lossless@3,topk@3")
    printed = run(2)
    rows = rows_of(printed)
    assert list(rows) == ["plain", "lossless@3", "topk@3"]
    assert rows["plain"]["calls"] == "100.0"
    assert all(re.fullmatch(r"[+-][\d.]+ \([+-][\d.]+ to [+-][\d.]+\)", rows[m]["interval"]) for m in list(rows)[1:])
    assert pairs.load("arithmetic").task.examples("test", 1)[0].prompt.split("\n")[0][:60] in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_bundled_pair_shows_what_lossy_rules_do(monkeypatch):
    rules = ("min_p@16", "judge@16")
    monkeypatch.setattr(demo, "MODES", ",".join(("plain", "lossless@8", "lossless@16", *rules)))
    printed = run(3)
    rows = rows_of(printed)
    assert list(rows) == demo.MODES.split(",")
    assert rows["lossless@16"]["score"] == rows["plain"]["score"]
    for lossy in rules:
        assert float(rows[lossy]["kept"]) > float(rows["lossless@16"]["kept"])
        assert float(rows[lossy]["calls"]) < float(rows["lossless@16"]["calls"])
    asked = [int(calls) for calls in re.findall(r"(\d+) calls", printed)]
    assert len(asked) == 3
    assert asked == sorted(asked, reverse=True)
    assert printed.count("right") >= 2  # the target alone and the lossy rule answer the question that is shown
    assert "«" in printed
    said = " ".join(printed[printed.index("Verdict") :].split())
    assert re.search(r"as fast as lossless@\d+, the fastest lossless setting", said)
    assert re.search(r"by [+-][\d.]+ \([+-][\d.]+ to [+-][\d.]+\) points", said)


def test_every_rule_drafts_as_far_as_the_longest_draft_of_lossless():
    longest = {mode.rule: mode.gamma for mode in parse_modes(MODES)}
    assert len(set(longest.values()) - {None}) == 1


@pytest.mark.parametrize("problems", ["0", "-1"])
def test_at_least_one_problem_is_answered(problems):
    assert invoke(["demo", "--limit", problems]).exit_code == 2
