"""``benchmarks.gpu``: the check of a GPU, with tiny models on a CPU."""

from __future__ import annotations

import json
import signal
import time

import pytest
import torch

from benchmarks.gpu import speed
from benchmarks.gpu.check import LEASE, PARTS, check
from benchmarks.gpu.faults import FAULTS, faults
from benchmarks.gpu.known_texts import is_known, pair_of, prompts
from benchmarks.gpu.run import Run
from benchmarks.gpu.speed import forwards
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.models.quantised import quantize_draft
from tests.graphs import Recorder, record


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@torch.no_grad()
def test_texts_are_known_and_drafts_err_at_the_chosen_rate(alpha):
    target, draft = pair_of(Run("cpu", True, 10.0), alpha)
    every = torch.arange(1024)[:, None]
    assert torch.equal(target(every).logits[:, 0].argmax(-1), (every[:, 0] + 1) % 1024)
    right = (draft(every).logits[:, 0].argmax(-1) == (every[:, 0] + 1) % 1024).float().mean()
    assert abs(right - alpha) < 4 * (alpha * (1 - alpha) / 1024) ** 0.5 + 0.01
    prompt = prompts(Run("cpu", True, 10.0), 2)
    assert is_known(torch.cat([prompt, prompt[:, -1:] + 1], dim=1), prompt, 1024)
    assert not is_known(torch.cat([prompt, prompt[:, -1:] + 2], dim=1), prompt, 1024)


def test_a_step_says_its_error_and_what_time_leaves_out(tmp_path):
    run = Run("cpu", True, 1000.0, tmp_path, ends=500.0)
    with run.step("breaks"):
        raise RuntimeError("no memory")
    with run.step("late", needs=501.0) as begins:
        assert not begins
    lines = said(tmp_path)
    assert [(x["part"], x["step"]) for x in lines] == [("error", "breaks"), ("left out", "late")]
    assert "no memory" in lines[0]["error"]
    assert run.failed == ["breaks"]


def test_an_interrupted_part_leaves_its_rows_and_the_next_one_runs(tmp_path):
    run = Run("cpu", True, 1000.0, tmp_path)

    def endless(run):
        run.say("row")
        with run.step("endless"):
            time.sleep(100)

    run.part("slow", endless, 0.2)
    run.part("next", lambda run: run.say("another"), 10)
    run.budget = 0.0
    run.part("last", lambda run: run.say("never"), 10)
    lines = said(tmp_path)
    assert [x["part"] for x in lines] == ["row", "left out", "another", "left out"]
    assert (lines[1]["step"], lines[3]["step"]) == ("the rest of slow", "last")
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_cases_take_turns_and_only_items_that_all_have_answered_count(tmp_path):
    run = Run("cpu", True, 1000.0, tmp_path, ends=1000.0)
    seconds = {"fast": [1, 9, 1], "plain": [2, 9, 6]}  # of one text, and of another one

    def measure(case):
        def body(item):
            if item == 3 and case == "plain":
                raise RuntimeError("no answer")
            return {"text": item == 2, "tokens": 12, "seconds": seconds[case][item] if item < 3 else 1}

        return body

    found = run.interleaved("p", {case: measure(case) for case in seconds}, range(4), rows=1)
    assert [x["case"] for x in said(tmp_path)[:6]] == ["fast", "plain", "plain", "fast", "fast", "plain"]
    assert {case: len(rows) for case, rows in found.items()} == {"fast": 3, "plain": 3}
    assert run.failed == ["p, item 3 of 4 and later"]
    run.compare("p", found, "plain", rows=1)
    fast, plain = said(tmp_path)[-2:]
    # The medians of the first text are 5 and 5.5 seconds; 24 tokens take 6 and 11.5.
    assert (fast["texts"], fast["calls"], fast["tokens_per_s"], plain["tokens_per_s"]) == (2, 3, 4.0, 2.1)
    assert fast["times_plain"][0] == pytest.approx(11.5 / 6, abs=1e-4)
    assert fast["times_plain"][1] < 11.5 / 6 < fast["times_plain"][2]


def test_faults_are_met_where_something_is_recorded(tmp_path, monkeypatch):
    def no_memory(states):
        raise torch.OutOfMemoryError("planted")  # for memory of a CPU torch raises another error

    recorder = record(monkeypatch, Recorder())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # the recorder says otherwise
    monkeypatch.setitem(FAULTS, "no memory in a recording", (5, no_memory))
    run = Run("cpu", True, 1000.0, tmp_path)
    run.part("faults", faults, 1000)
    lines = said(tmp_path)
    assert not run.failed
    assert recorder.replays
    planted = {x["fault"]: x for x in lines if x.get("case") == "planted"}
    assert [*planted] == [*FAULTS]
    assert all(x["met"] > 0 for x in planted.values())
    assert "OutOfMemoryError: planted" in planted["no memory in a recording"]["warned"][0]
    assert all(x["text_is_right"] for x in lines if "text_is_right" in x)
    assert sum(x["fault"] == "temperatures" for x in lines) == 3 + 2  # later, and how much more memory


def test_forwards_are_timed_alone(tmp_path, monkeypatch):
    record(monkeypatch, Recorder())
    run = Run("cpu", True, 1000.0, tmp_path, ends=1000.0)
    target, draft = pair_of(run, 1.0)
    forwards(run, target, prompts(run), widths=(5, 1))
    forwards(run, quantize_draft(draft), prompts(run), drafts=(1, 4))
    lines = said(tmp_path)
    assert [(x.get("tokens"), x.get("drafted"), x["int8"]) for x in lines] == [
        (5, None, False), (1, None, False), (None, 1, True), (None, 4, True),
    ]  # fmt: skip
    assert all(x["part"] == "forward" and x["ms"] > 0 for x in lines)
    assert lines[3]["count"] > lines[2]["count"]


@pytest.fixture
def _no_hurry(monkeypatch):
    for name, (body, _) in PARTS.items():
        monkeypatch.setitem(PARTS, name, (body, 10_000.0))


@pytest.mark.usefixtures("_no_hurry")
def test_the_check_runs_with_tiny_models(tmp_path):
    check(out=tmp_path, tiny=True, budget=10_000.0, parts="equality")
    lines = said(tmp_path)
    parts = {x["part"] for x in lines}
    assert {"equality", "rule", "drawn"} <= parts
    assert "error" not in parts
    assert {x["mode"] for x in lines if x["part"] == "rule"} | set(left_out(lines)) == {*REGISTRY}
    assert lines[-1]["failed"] == []


@pytest.mark.usefixtures("_no_hurry")
def test_a_lease_runs_with_tiny_models(tmp_path):
    assert list(LEASE) == "speed batch large answers faults".split()
    check(out=tmp_path, tiny=True, budget=10_000.0)
    lines = said(tmp_path)
    wanted = ["first call", "speed", "batch", "large", "answers", "faults", "end"]
    assert [x for x in dict.fromkeys(x["part"] for x in lines) if x not in ("device", "end")] == wanted[:-1]
    assert all(x["text_is_right"] for x in lines if "text_is_right" in x)
    for part, beside in (("speed", 2), ("batch", 2), ("answers", 5), ("large", 5)):
        summaries = [x for x in lines if x["part"] == part and "times_plain" in x]
        assert len(summaries) == beside
        assert all(x["times_plain"] == [1, 1, 1] for x in summaries if x["case"] == speed.PLAIN)
        assert all(x["texts"] == 2 and x["tokens_per_s"] > 0 for x in summaries)
    assert {x["n"] for x in lines if "difference" in x} == {2}
    assert lines[-1]["failed"] == []


def test_unknown_parts_are_refused():
    with pytest.raises(LossyValueError, match="sped"):
        check(tiny=True, parts="speed,sped")


def said(folder):
    return [json.loads(line) for line in (folder / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]


def left_out(lines):
    """Name the rules that a loaded machine had no time for."""
    steps = (x["step"] for x in lines if x["part"] == "left out")
    return [step.removeprefix("rule ") for step in steps if step.startswith("rule ")]
