"""``lossy-assist advise``."""

from __future__ import annotations

import json
from functools import partial

import pytest
from rich.cells import cell_len

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation import advising
from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.evaluation.speeds import Costs
from tests.cli.running import said

GIVEN = ("advise", "--pair", "arithmetic", "--limit", "2", "--max-new-tokens", "20")


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Let every repeat see the same times, whatever the machine is doing."""
    costs = Costs(1e-6, {1: 1.0, 33: 1.0})
    monkeypatch.setattr(advising, "measure_costs", lambda *_: [costs] * 3)


run = partial(said, " ".join(GIVEN), columns=80)


def test_rows_are_of_the_rules_and_draft_lengths_asked_for(bundled, tmp_path):
    shown = run("--modes", "lossless@2,typical@2,typical@5,topk@4:k=3", "--out", str(tmp_path))
    to_copy = ("written", "What other tokens")  # paths and commands stay whole
    assert max(cell_len(line) for line in shown.splitlines() if not line.startswith(to_copy)) <= 80
    assert "Next: lossy-assist evaluate --pair arithmetic --max-new-tokens 20 --modes plain,lossless@" in shown
    found = json.loads((tmp_path / "advice.json").read_text(encoding="utf-8"))
    rows = {(row["mode"], row["gamma"]) for row in found["rows"]}
    assert {("lossless", 2), ("typical", 2), ("typical", 5), ("topk:k=3", 4)} == {
        row for row in rows if row[0] != "everything"
    }
    assert {*found["rows"][0]} == {
        *("mode", "gamma", "kept", "tokens_per_call", "times_lossless", "low", "high", "times_alone", "others"),
        *("nats", "worst"),
    }
    assert found["costs"]["target"]["1"] > 0
    assert all(row["low"] <= row["times_lossless"] <= row["high"] for row in found["rows"])


def test_the_next_command_has_all_that_was_given(bundled):
    shown = run("--modes", "lossless@2", "--prepack", "--threads", "1", "--split", "train", "--max-new-tokens", "9")
    given = "--pair arithmetic --prepack --threads 1 --split train --max-new-tokens 9"
    assert f"evaluate {given} --modes plain,lossless@" in shown


def test_a_larger_limit_uses_the_answers_that_are_there(bundled, tmp_path):
    run("--modes", "topk", "--out", str(tmp_path))
    before = (tmp_path / "results.jsonl").read_text().splitlines()
    run("--modes", "topk", "--out", str(tmp_path), "--limit", "3")
    assert (tmp_path / "results.jsonl").read_text().splitlines()[:-1] == before


def test_the_setting_is_stored_beside_the_answers_of_an_evaluation(bundled, tmp_path):
    said("evaluate --pair arithmetic --max-new-tokens 20 --limit 2 --modes plain", "--out", str(tmp_path))
    before = (tmp_path / "results.jsonl").read_bytes()
    run("--modes", "topk", "--out", str(tmp_path))
    assert (tmp_path / "results.jsonl").read_bytes() == before
    with pytest.raises(LossyValueError, match="take 'lossless@0', the target alone"):  # this draft is never right
        DecodingMode.stored(str(tmp_path))
    refused = run("--out", str(tmp_path), "--split", "train", status=2)
    assert "`--out` has to be a new folder or hold data" in " ".join(refused.split())


@pytest.mark.parametrize("head", ["eagle3", "dflash"])
def test_other_drafters_are_for_evaluate_to_measure(head):
    assert "measure a dozen prompts with `evaluate`" in " ".join(run("--assistant", head, status=2).split())
