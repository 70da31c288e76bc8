"""SPRINTER's run lengths by its theory."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.run_lengths import app, predict_run_length
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import PromptBatch, batches_of, run_request
from tests.benchmarks.running import run
from tests.small_pair import verifier_for
from tests.tiny_models import prompt

LENGTH = 16


def prompts() -> list[PromptBatch]:
    return batches_of([prompt(6, seed)[0].tolist() for seed in range(3)])


@pytest.mark.parametrize("position", ["previous", "token"])
@pytest.mark.parametrize(("bias", "rate"), [(-50.0, 0.0), (50.0, 1.0)])
def test_predicted_runs_of_a_head_that_always_says_the_same(models, position: str, bias: float, rate: float):
    head = verifier_for(models, position, bias=bias, scale=0.0)
    mode = DecodingMode("x", "sprinter", {"threshold": 0.5, "max_draft": 8}, 5)
    able = Models(models.target, models.draft, {"sprinter": head})
    texts = [(put.ids[0], run_request(able, mode, put, LENGTH).rows[0]) for put in prompts()]
    told = predict_run_length(models.target, models.draft, head, 0.5, texts, max_draft=8)
    assert told.tpr == told.fpr == rate
    assert told.mean_run == pytest.approx(7 * rate)
    assert 0 < told.acceptable < 1


def test_predicted_rates_are_those_of_a_naive_count(models):
    target, draft = models.target, models.draft
    head = verifier_for(models, scale=3.0, seed=1)
    put = prompts()[0]
    text = put.ids[0], run_request(models, DecodingMode(), put, LENGTH).rows[0]
    told = predict_run_length(target, draft, head, 0.5, [text])
    ids, marks = torch.cat(text), []
    for i in range(6, len(ids)):
        states = []
        handle = draft.lm_head.register_forward_pre_hook(lambda _, args: states.append(args[0][0, -1]))  # noqa: B023
        q = draft(input_ids=ids[None, :i]).logits[0, -1].softmax(-1)
        handle.remove()
        p = target(input_ids=ids[None, :i]).logits[0, -1].softmax(-1)
        x = q.argmax()
        marks.append((bool(q[x] / p[x] <= 1.0), bool(torch.sigmoid(states[0] @ head.weight + head.bias) > 0.5)))
    for kind, rate in ((True, told.tpr), (False, told.fpr)):
        passed = [passes for acceptable, passes in marks if acceptable == kind]
        assert rate == pytest.approx(sum(passed) / max(1, len(passed)))


def test_the_command(tmp_path):
    out = tmp_path / "rows.jsonl"
    printed = run(
        app, "--pair", "arithmetic", "--thresholds", "0.5,0.9", "--count", 1, "--max-new-tokens", 12, "--out", out
    ).stdout
    _, *rows = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert [row["threshold"] for row in rows] == [0.5, 0.9]
    assert rows[0]["tpr"] >= rows[1]["tpr"]
    assert all(row["measured_run"] >= 0 and row["mean_run"] >= 0 for row in rows)
    assert "theorem 2" in printed
