"""Tables of quality: their figures, and that the pages show what the kept answers say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import quality_table
from hf_lossy_assist.evaluation.answers import Answer, AnswerStore

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "qwen-coder"
COSTS = KEPT / "costs.json"
LONG = ("humaneval-long", "gsm8k-long")


@pytest.fixture
def folder(tmp_path):
    rule = {"num_assistant_tokens": 5}
    modes = {
        "typical@8": {"num_assistant_tokens": 8},
        "draft": {},
        "topk": rule | {"lossy_mode": "topk"},
        "lossless": rule | {"lossy_mode": "lossless"},
    }
    plan = {"modes": modes, "problems": [1, 2, 3], "runs": [], "reference": "lossless"}
    store = AnswerStore(tmp_path / "answers", plan)
    for i in range(3):
        store.add(Answer("lossless", i, 1.0, 60, 20, 40, None, "", cut=not i))
    for i in range(3):
        store.add(Answer("topk", i, float(i > 0), 66, 11, 54, None, ""))
    for i in range(3):
        store.add(Answer("draft", i, 0.0, 50, 0, 50, None, ""))
    for i in range(2):  # not all problems
        store.add(Answer("typical@8", i, 0.5 - i / 4, 60, 10, 50, None, ""))
    return tmp_path / "answers"


def rows(*arguments):
    result = CliRunner().invoke(quality_table.app, [str(x) for x in arguments])
    assert result.exit_code == 0, result.output
    found = {}
    for table in result.stdout.strip().split("\n\n"):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        found |= {(line[0], line[1]): dict(zip(lines[0], line, strict=True)) for line in lines[2:]}
    return found


def test_scores_and_gains(folder):
    found = rows(folder)
    assert list(found) == [
        ("draft alone", "3"), ("`lossless`", "3"), ("`topk`", "3"), ("`lossless`", "2"), ("`typical@8`", "2"),
    ], "who answered fewer problems stands in a table of their own"  # fmt: skip
    assert found["`lossless`", "2"]["cut off, %"] == "50.0", "on the same two problems"
    found = {label: row for (label, n), row in found.items() if n == "3" or label == "`typical@8`"}
    lossless = ["`lossless`", "3", "100.0", "", "2.00", "1 = 3.00 (3.00 … 3.00)", "1 = 60", "1", "33.3"]
    assert list(found["`lossless`"].values()) == lossless
    topk = found["`topk`"]
    assert topk["points"].startswith("-33.3 (")
    assert topk["kept"] == "4.91"
    assert topk["tokens per call, ×"] == "2.00 (2.00 … 2.00)", "every problem gains the same"
    assert topk["tokens, ×"] == "1.10 (1.10 … 1.10)"
    assert topk["time, ×"] == "0.55 (0.55 … 0.55)"
    assert found["draft alone"]["time, ×"] == found["draft alone"]["kept"] == ""
    assert found["`typical@8`"]["n"] == "2"
    assert found["`typical@8`"]["time, ×"] == "", "nobody knows what longer rounds cost"


def test_an_answer_takes_its_own_rounds_times_what_they_cost(folder, tmp_path, monkeypatch):
    """Prompts of 100 tokens are read in 1 s; a drafted token takes 0.02 s, and so do 0.2 s of each round."""
    (tmp_path / "prompts.json").write_text('{"words": [100, 100, 100]}')
    monkeypatch.setattr(quality_table, "_PROMPTS", tmp_path / "prompts.json")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"task": "words"}))
    costs = {"lengths": [100], "prompt": [1.0], "prompt_alone": [0.5], "drafted": [0.02]}
    known = {
        "plain": costs | {"target": {"1": [0.1]}},
        "lossless@5": costs | {"target": {"6": [0.2]}},
        "lossless@8": costs | {"target": {"9": [0.29]}},
        "dropmatch@8": costs | {"target": {"9": [9.0]}},
    }
    (tmp_path / "costs.json").write_text(json.dumps({"modes": known}))
    found = rows(folder, "--costs", tmp_path / "costs.json")
    lossless, topk, typical = 1 + 20 * 0.3, 1 + 11 * 0.3, 1 + 10 * 0.45
    assert found["`lossless`", "3"]["time, ×"] == f"1 = {lossless:.1f} s"
    assert found["`lossless`", "3"]["speed, ×"] == "1"
    for name, n, tokens, seconds in (("`topk`", "3", 1.1, topk), ("`typical@8`", "2", 1.0, typical)):
        assert found[name, n]["time, ×"].startswith(f"{seconds / lossless:.2f} (")
        assert found[name, n]["speed, ×"].startswith(f"{tokens * lossless / seconds:.2f} (")
    assert found["draft alone", "3"]["time, ×"] == "", "nobody knows what its tokens cost"


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        *(("which-rule", name) for name in ("humaneval", "gsm8k", "humaneval-rules", "gsm8k-drawn", "drawn", *LONG)),
        ("which-rule", "chat"),
        ("judge", "judge-humaneval"),
        ("judge", "../heads"),
    ],
)
def test_a_page_shows_what_the_kept_answers_say(page: str, kept: str):
    table = quality_table.table(KEPT / kept, COSTS if kept in LONG else None)
    assert table in (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/results/which-rule.md"])
def test_the_table_of_the_first_page_is_that_of_the_kept_answers(page: str):
    assert quality_table.first_page() in (ROOT / page).read_text(encoding="utf-8")


def test_predictions_stand_beside_what_other_problems_have_shown():
    assert quality_table.predictions() in (ROOT / "docs/results/which-rule.md").read_text(encoding="utf-8")


def test_a_ratio_has_the_p_value_of_its_interval():
    """At p = 0.05 the interval ends at 1."""
    ends = 1.21, 1.0, 1.21**2
    assert quality_table.p_of_ratio(ends, 7) == pytest.approx(0.05)
    assert quality_table.p_of_ratio((1 / 1.21, 1.21**-2, 1.0), 7) == pytest.approx(0.05)
