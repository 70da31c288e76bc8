"""Tables of quality for a page."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import quality_table
from hf_lossy_assist.evaluation.answers import Answer, AnswerStore


@pytest.fixture
def folder(tmp_path):
    rule = {"num_assistant_tokens": 5}
    modes = {
        "typical": {},
        "draft": {},
        "topk": rule | {"lossy_mode": "topk"},
        "lossless": rule | {"lossy_mode": "lossless"},
    }
    plan = {"modes": modes, "problems": [1, 2, 3], "runs": [], "reference": "lossless"}
    store = AnswerStore(tmp_path / "answers", plan)
    store.add([Answer("lossless", i, 1.0, 60, 20, 40, None, "", cut=not i) for i in range(3)])
    store.add([Answer("topk", i, float(i > 0), 66, 12, 54, None, "") for i in range(3)])
    store.add([Answer("draft", i, 0.0, 50, 0, 50, None, "") for i in range(3)])
    store.add([Answer("typical", i, 0.0, 50, 0, 50, None, "") for i in range(2)])  # not all problems
    return tmp_path / "answers"


def rows(*arguments):
    result = CliRunner().invoke(quality_table.app, [str(x) for x in arguments])
    assert result.exit_code == 0, result.output
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in result.stdout.splitlines()]


def test_scores_and_lengths(folder):
    (count,), _, heads, _, draft, lossless, topk = rows(folder)
    assert count == "3 problems"
    assert heads[3] == "kept of 5"
    assert lossless == ["`lossless`", "100.0", "", "2.00", "33.3", "60", "33.3"]
    assert draft[:2] + draft[3:5] == ["draft alone", "0.0", "", ""]
    assert topk[2].startswith("-33.3 (")
    assert topk[3:5] == ["4.50", "18.2"]
    assert topk[5].startswith("66 (+6, +6")
    fewer = rows(folder, "--first", 2)
    assert fewer[0] == ["2 problems"]
    assert "`typical`" in {row[0] for row in fewer}


def test_modes_with_fewer_problems_are_compared_on_their_own(folder):
    found = {row[0]: row[1:] for row in rows(folder, "--unequal")[4:]}
    assert {name: row[0] for name, row in found.items()} == {
        "draft alone": "3", "`lossless`": "3", "`topk`": "3", "`typical`": "2",
    }  # fmt: skip
    assert found["`typical`"][2].startswith("-100.0 (")


@pytest.mark.parametrize("label", ["topk", "topk@5"])
def test_seconds_are_those_of_the_first_and_of_later_rounds(folder, tmp_path, label):
    bench = tmp_path / "bench.jsonl"
    summary = {"table": "ModeSummary", "label": label, "first_token": 2.0}
    request = {"table": "RequestRecord", "label": label, "split": None}
    written = [
        {"table": "provenance", "gamma": "5"}, summary,
        request | {"seconds": 4.0, "counts": {"rounds": 5}},
        request | {"seconds": 5.0, "counts": {"rounds": 7}},
        request | {"seconds": 60.0, "counts": {"rounds": 7}},  # something else kept the machine busy
        request | {"seconds": 2.5, "counts": {"rounds": 1}},  # has no later round
        request | {"seconds": 99.0, "counts": {"rounds": 7}, "split": {"drafting": 1.0}},  # hooks slow it
    ]  # fmt: skip
    bench.write_text("\n".join(map(json.dumps, written)))
    found = {row[0]: row[-1] for row in rows(folder, "--bench", bench)[4:]}
    # A later round took 0.5 s in the median, so 12 rounds take 2 + 11 · 0.5 s.
    assert found == {"`lossless`": "", "draft alone": "", "`topk`": "7.5"}
