"""Answers in a folder: what is there is kept, and nothing of other settings is added to it. Rows of measurements."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation.answers import RESULTS, Answer, AnswerStore, load_answers, provenance
from hf_lossy_assist.store import folder

PLAN = {"task": "t", "seed": 0, "modes": {"a": {"k": 1}}, "problems": [7, 8], "runs": [{"date": "today"}]}


def answer(mode: str, id: int) -> Answer:
    return Answer(mode, id, 1.0, 5, 2, 3, 0.5, f"naïve «{id}»\nline", ids=(4, 5))


def test_answers_are_lines_with_the_fields_that_are_promised(tmp_path):
    store = AnswerStore(tmp_path / "deep" / "out", PLAN)
    for i in range(2):
        store.add(answer("a", i))
    lines = [json.loads(line) for line in (store.folder / RESULTS).read_text(encoding="utf-8").splitlines()]
    assert [list(line) for line in lines] == [
        ["mode", "id", "score", "tokens", "rounds", "accepted", "seconds", "text", "lossy", "cut", "prompt",
         "drafted", "ids"]
    ] * 2  # fmt: skip
    assert [*AnswerStore(store.folder, PLAN)] == [answer("a", 0), answer("a", 1)]
    manifest, answers = load_answers(store.folder)
    assert answers == [answer("a", 0), answer("a", 1)]
    assert len(manifest["runs"]) == 2


LINE = asdict(Answer("a", 0, 1.0, 4, 2, 2, 0.5, "yes"))


@pytest.mark.parametrize(("field", "value"), [("seconds", "x"), ("accepted", -1)])
def test_a_value_that_does_not_belong_there_is_named(tmp_path, field, value):
    AnswerStore(tmp_path, PLAN)
    (tmp_path / RESULTS).write_text(json.dumps({**LINE, field: value}) + "\n")
    with pytest.raises(LossyValueError, match=f"line 1 of .*`{field}`"):
        load_answers(tmp_path)


def test_the_origin_of_a_measurement_has_no_folders(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["x", "--target", "/home/me/target", "--task-data=../data.jsonl"])
    origin = provenance("cpu", gamma=4, draft="/home/me/draft")
    assert {"torch", "transformers", "argv", "date", "threads"} <= set(origin)
    assert (origin["device"], origin["gamma"], origin["draft"]) == ("cpu", 4, "draft")
    assert origin["cpu"]  # its name
    assert origin["argv"][-3:] == ["--target", "target", "--task-data=data.jsonl"]


def test_the_command_line_is_that_which_one_would_type(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["/bin/python", "-m", "benchmarks.offloaded", "evaluate"])
    assert folder.command_line() == ["python", "-m", "benchmarks.offloaded", "evaluate"]
    before = folder.typed.set(("evaluate", "--out", "x"))
    assert folder.command_line() == ["lossy-assist", "evaluate", "--out", "x"]
    folder.typed.reset(before)
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    assert folder.command_line() == [], "a kernel's own arguments say nothing"
