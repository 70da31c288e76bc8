"""``lossy-assist advise``."""

from __future__ import annotations

import json
from functools import partial

import pytest
from rich.cells import cell_len

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation.advice.advising import Advising
from hf_lossy_assist.evaluation.advice.speeds import Costs
from hf_lossy_assist.evaluation.modes import DecodingMode
from tests.cli.running import said

GIVEN = ("advise", "--pair", "arithmetic", "--limit", "2", "--max-new-tokens", "20")


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Let every repeat see the same times, whatever the machine is doing."""
    costs = Costs(1e-6, {1: 1.0, 33: 1.0})
    monkeypatch.setattr(Advising, "_costs", lambda self, length: [costs] * 3)


run = partial(said, " ".join(GIVEN), columns=80)


def test_rows_are_of_the_rules_and_draft_lengths_asked_for(bundled, tmp_path):
    shown = run("--modes", "lossless@2,typical@2,typical@5,topk@4:k=3", "--out", str(tmp_path))
    to_copy = ("written", "What other tokens")  # paths and commands stay whole
    assert max(cell_len(line) for line in shown.splitlines() if not line.startswith(to_copy)) <= 80
    assert "--modes plain,lossless@" in shown
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


def test_sampled_rows_say_how_far_rules_leave_the_target(bundled, tmp_path):
    given = f"--sample --temperature 1 --top-p 0.95 --modes ears:beta=1.0 --out {tmp_path}".split()
    shown = run(*given)
    assert "TV" in shown
    rows = {row["mode"]: row for row in json.loads((tmp_path / "advice.json").read_text(encoding="utf-8"))["rows"]}
    assert rows["lossless"]["tv"] < 1e-6 < rows["ears:beta=1.0"]["tv"] < 1
    assert "nats" not in rows["lossless"]
    before = (tmp_path / "results.jsonl").read_text().splitlines()
    run(*given, "--limit", "3")
    assert (tmp_path / "results.jsonl").read_text().splitlines()[:-1] == before


def test_the_setting_is_stored_beside_the_answers_of_an_evaluation(bundled, tmp_path):
    said("evaluate --pair arithmetic --max-new-tokens 20 --limit 2 --modes plain", "--out", str(tmp_path))
    before = (tmp_path / "results.jsonl").read_bytes()
    run("--modes", "topk", "--out", str(tmp_path))
    assert (tmp_path / "results.jsonl").read_bytes() == before
    with pytest.raises(LossyValueError, match="leave the assistant out"):  # this draft is never right
        DecodingMode.stored(str(tmp_path))
    for given in (("--sample", "--temperature", "1"), ("--split", "train")):
        assert "`--out` has to be a new folder or hold data" in " ".join(
            run("--out", str(tmp_path), *given, status=2).split()
        )


def test_batches_have_an_option(bundled):
    shown = run("--limit", "4", "--batch-size", "2", "--modes", "typical@4")
    assert "A batch goes on until its slowest row has ended" in " ".join(shown.split())
    assert "--batch-size 2" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--top-p", "0.9"), "`--top-p` 0.9 needs `--sample`"),
        (("--modes", "typical:tree.depth=3:tree.top_k=2:tree.nodes=4"), "only rules that judge position by position"),
        (("--modes", "plain"), "`--modes` has to name rules"),
        (("--batch-size", "2"), "`--batch-size` has to be at most half the number of prompts, 2, but is 2"),
        (("--modes", "topq"), "did you mean 'topk'?"),
    ],
)
def test_wrong_options_are_refused(bundled, arguments, message):
    assert message in run(*arguments, status=2)


@pytest.mark.parametrize("head", ["eagle3", "dflash"])
def test_other_drafters_are_for_evaluate_to_measure(head):
    assert "measure a dozen prompts with `evaluate`" in " ".join(run("--assistant", head, status=2).split())
