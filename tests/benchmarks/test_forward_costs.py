"""Costs of forwards, and the estimate that follows from them."""

from __future__ import annotations

import json

import pytest

from benchmarks.forward_costs import ForwardCost, app, estimates, main, speedup
from hf_lossy_assist import LossyValueError
from tests.benchmarks.running import run

TINY = "hidden=32,layers=2,heads=2,kv_heads=2,head_dim=16,intermediate=48,vocab=64"


def test_forwards_are_timed_and_written(tmp_path):
    out = tmp_path / "rows.jsonl"
    sizes = ("--tokens", "1,3", "--head-tokens", "1", "--context", 5, "--draft-vocab", 32, "--repeats", 1)
    run(app, "--geometry", TINY, *sizes, "--out", out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(row["what"], row["tokens"]) for row in rows[1:]] == [("target", 1), ("target", 3), ("head", 1)]
    assert rows[1]["ratio"] == 1


def test_rows_that_are_not_there_are_missed_before_anything_is_timed(tmp_path):
    with pytest.raises(LossyValueError, match=r"`--measured` .*nowhere"):
        main(geometry=TINY, measured=tmp_path / "nowhere")


def test_an_estimate_puts_the_measured_costs_together(tmp_path):
    mode = {
        "table": "ModeSummary", "label": "lossless@2", "config": {"num_assistant_tokens": 2, "lossy_config": {}},
        "tokens_per_round": 1.5, "draft_calls_per_round": 2.0, "ratios": {"target alone": 1.1},
        "per_round": {"drafting": 9.0, "verifying": 9.0, "deciding": 0.25, "rest": 0.25},
    }  # fmt: skip
    tree = {"tree": {"nodes": 24, "top_k": 6}}
    unknown = mode | {"label": "a tree", "config": {"num_assistant_tokens": 5, "lossy_config": tree}}
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ({"table": "provenance"}, mode, unknown)), encoding="utf-8")
    costs = [
        ForwardCost("target", 1, 10.0, 1.0),
        ForwardCost("target", 3, 11.0, 1.1),
        ForwardCost("head", 1, 0.75, 0.1),
    ]
    [found] = estimates(costs, path)
    assert (found.label, found.verify, found.drafting, found.deciding) == ("lossless@2", 3, 1.5, 0.5)
    assert found.speedup == pytest.approx(1.5 * 10 / (1.5 + 11 + 0.5)) == speedup(1.5, 10, 1.5, 11, 0.5)
