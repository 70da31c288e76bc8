"""``lossy-assist demo``."""

from __future__ import annotations

import functools
import re

import pytest
from typer.testing import CliRunner

from hf_lossy_assist import pairs
from hf_lossy_assist.cli import app, contest
from hf_lossy_assist.cli.contest import Answer, Contender, Tally, answer, contenders_for

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


def test_every_mode_is_compared(tiny_pair_folder, monkeypatch):
    monkeypatch.setattr(pairs, "load", functools.partial(pairs.load, folder=tiny_pair_folder))
    monkeypatch.setattr(contest, "MAX_NEW_TOKENS", 6)
    printed = run("--problems", "2", "--gamma", "3")
    rows = rows_of(printed)
    assert len(rows) == len(contenders_for(pairs.load("arithmetic")))
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


def test_a_contender_answers_under_its_rule(tiny_pair_folder, monkeypatch):
    monkeypatch.setattr(contest, "MAX_NEW_TOKENS", 6)
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    example = pair.task.examples("test", 1)[0]
    plain = answer(pair, Contender("target alone"), example, 3, 0)
    assert (plain.trace, plain.rounds, len(plain.tokens)) == ((), 0, 6)
    lossless = answer(pair, Contender("lossless", "lossless"), example, 3, 0)
    assert lossless.tokens == plain.tokens
    assert len(lossless.trace) == 6
    lax = answer(pair, Contender("topk", "topk", (("k", 9999),)), example, 3, 0)
    assert lax.accepted > 3
    draws = [answer(pair, Contender("ears", "ears", sample=True), example, 3, seed).tokens for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_a_tally_adds_up():
    tally = Tally()
    assert (tally.accuracy, tally.mean_accepted, tally.tokens_per_round, tally.tokens_per_second) == (0, 0, 0, 0)
    for correct in (True, False):
        tally.add(Answer("", [1] * 10, (), correct, seconds=0.5, rounds=4, accepted=6))
    assert tally.accuracy == pytest.approx(0.5)
    assert tally.mean_accepted == pytest.approx(1.5)
    assert tally.tokens_per_round == pytest.approx(2.5)
    assert tally.tokens_per_second == pytest.approx(20)
