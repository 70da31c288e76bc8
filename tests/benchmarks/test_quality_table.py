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
FORWARDS = KEPT / "forwards" / "bench.jsonl"
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
    store.add([Answer("lossless", i, 1.0, 60, 20, 40, None, "", cut=not i) for i in range(3)])
    store.add([Answer("topk", i, float(i > 0), 66, 11, 54, None, "") for i in range(3)])
    store.add([Answer("draft", i, 0.0, 50, 0, 50, None, "") for i in range(3)])
    store.add([Answer("typical@8", i, 0.5 - i / 4, 60, 10, 50, None, "") for i in range(2)])  # not all problems
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


def test_scores_between_right_and_wrong_have_an_interval_of_their_own_size(folder):
    # Differences of -0.5 and -0.75, and two more of √(0.5⁴ + 0.75⁴) / √(0.5² + 0.75²).
    assert rows(folder)["`typical@8`", "2"]["points"] == "-62.5 (-100.0 … +75.7)"


def test_longer_rounds_cost_what_their_forwards_take(folder, tmp_path):
    bench = tmp_path / "bench.jsonl"
    split = {"draft_call": 0.03, "deciding": 0.05, "rest": 0.05, "target_calls": 10}
    answer = {"table": "RequestRecord", "split": None}
    written = [
        {"table": "provenance"},
        answer | {"label": "lossless@5"},
        answer | {"label": "lossless@5", "split": split | {"target_call": 0.14}},
        answer | {"label": "typical@8", "split": split | {"target_call": 0.20}},
        answer | {"label": "dropmatch@8", "split": split | {"target_call": 9.0}},
    ]
    bench.write_text("\n".join(map(json.dumps, written)))
    assert quality_table.round_costs(bench) == {5: pytest.approx(0.3), 8: pytest.approx(0.45)}
    # Half the calls, each 1.5 × as long.
    assert rows(folder, "--bench", bench)["`typical@8`", "2"]["time, ×"] == "0.75 (0.75 … 0.75)"


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        *(("which-rule", name) for name in ("humaneval", "gsm8k", "humaneval-rules", "drawn", "chat", *LONG)),
        ("judge", "judge-humaneval"),
        ("judge", "../heads"),
    ],
)
def test_a_page_shows_what_the_kept_answers_say(page: str, kept: str):
    table = quality_table.table(KEPT / kept, FORWARDS if kept in LONG else None)
    assert table in (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/results/which-rule.md"])
def test_the_table_of_the_first_page_is_that_of_the_kept_answers(page: str):
    assert quality_table.first_page() in (ROOT / page).read_text(encoding="utf-8")
