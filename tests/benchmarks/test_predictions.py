"""Measured acceptance beside closed forms."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks.predictions import app, predict
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import PromptBatch
from tests.benchmarks.running import run
from tests.tiny_models import constant, noisy_copy, prompt, tiny


@pytest.mark.parametrize(
    ("rule", "settings"),
    [("lossless", {}), ("ears", {}), ("ears", {"beta": 0.2}), ("cactus", {"delta": 0.05})],
    ids=["lossless", "0.1", "0.2", "cactus"],
)
def test_what_is_kept_is_what_the_closed_form_says(rule, settings):
    """Constant laws: every position has the same p and q, so the closed form is one number. 4σ."""
    p, q, temperature = [0.5, 0.2, 0.1, 0.1, 0.05, 0.05], [0.1, 0.3, 0.2, 0.2, 0.1, 0.1], 0.8
    models = Models(constant(p), constant(q))
    models.target.generation_config.eos_token_id = None
    ids = torch.tensor([[1, 2, 3]])
    batches = [PromptBatch(ids, torch.ones_like(ids), 1 + i) for i in range(6)]
    row = predict(models, DecodingMode("x", rule, settings, 4, temperature), batches, 150)

    p, q = (np.array(law) ** (1 / temperature) for law in (p, q))
    p, q = p / p.sum(), q / q.sum()
    beta, delta = settings.get("beta", 0.1) if rule == "ears" else 0.0, settings.get("delta", 0.0)
    h = np.minimum(1, p + np.sqrt(2 * delta * p * (1 - p)))
    wanted = np.minimum(q, h + beta * (1 - p.max()) * q).sum()
    assert row.predicted == pytest.approx(wanted, abs=1e-5)
    assert row.gain == pytest.approx(wanted - np.minimum(p, q).sum(), abs=1e-5)
    assert row.bound == pytest.approx(beta * (1 - p.max()) * q[p < q].sum(), abs=1e-5)
    assert rule == "cactus" or row.gain <= row.bound + 1e-9
    kl = h * np.log(h / p) + (1 - h) * np.log((1 - h) / (1 - p))
    assert row.divergence == pytest.approx((q * kl).sum(), abs=1e-5)
    assert row.largest == pytest.approx(kl.max(), abs=1e-5)
    assert row.largest <= np.log1p(2 * delta)
    assert row.positions > 500
    assert row.margin == pytest.approx(1.96 * np.sqrt(wanted * (1 - wanted) / row.positions), rel=1e-3)
    assert abs(row.measured - row.predicted) < 4 / 1.96 * row.margin


def test_positions_are_those_that_were_judged():
    """On models whose laws change from place to place, each position has the laws of the text before it."""
    target = tiny()
    target.generation_config.eos_token_id = None
    models = Models(target, noisy_copy(target, 0.05))
    ids = prompt(5)
    batches = [PromptBatch(ids, torch.ones_like(ids), i) for i in range(4)]
    row = predict(models, DecodingMode("lossless", "lossless", gamma=3, temperature=1.0), batches, 40)
    assert 0.2 < row.predicted < 0.999
    assert abs(row.measured - row.predicted) < 4 / 1.96 * row.margin
    assert (row.gain, row.bound) == (0.0, 0.0)


def test_the_command(tiny_pair_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    printed = run(
        app, "--folder", tiny_pair_folder, "--modes", "lossless,ears:beta=0.2", "--prompts", 2, "--gamma", 2,
        "--temperature", 1.1, "--max-new-tokens", 8, "--out", out,
    ).stdout  # fmt: skip
    origin, lossless, ears = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert (origin["temperature"], origin["prompts"]) == (1.1, 2)
    assert (lossless["label"], ears["label"]) == ("lossless", "ears:beta=0.2")
    assert lossless["gain"] == 0
    assert 0 < ears["gain"] <= ears["bound"]
    assert "measured and predicted" in printed
    assert "['topk']" in run(app, "--modes", "lossless,topk", status=2).stderr
