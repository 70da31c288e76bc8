"""``benchmarks.gpu``: predictions from bytes and launches, and the check of a GPU, with tiny models on a CPU."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.check import PARTS, check
from benchmarks.gpu.known_texts import continue_by, is_known, pair_of, prompts
from benchmarks.gpu.predictions import CARDS, FILE, bytes_read, forward_seconds, predict, predictions, table
from benchmarks.gpu.run import Run
from benchmarks.gpu.speed import _forwards
from benchmarks.growing.geometry import PRESETS, Geometry
from hf_lossy_assist.acceptors import REGISTRY
from tests.graphs import Recorder, record

H100, H200, _ = CARDS
PAGE = Path(__file__).parents[2] / "docs/results/gpu.md"


def test_bytes_by_hand():
    # Per layer 2·2·6·4 of queries and output, 2·2·3·4 … of keys and values, and three matrices of 4 × 8.
    shape = Geometry(hidden=4, layers=3, heads=6, kv_heads=2, head_dim=2, intermediate=8, vocab=10)
    layer = 4 * 12 + 12 * 4 + 2 * 4 * 4 + 3 * 4 * 8
    assert bytes_read(shape) == 2 * (3 * layer + 10 * 4)


@pytest.mark.parametrize(
    ("card", "size", "eager", "ms"),
    [
        # 7.505 billion weights of 2 bytes at 0.9 · 3.35 TB/s, and 1.236 billion.
        (H100, "llama-8b", False, 4.98),
        (H100, "llama-1b", False, 0.82),
        (H200, "llama-8b", False, 3.47),
        # 32 and 16 layers of 40 kernels, 6 µs each: the host is slower than the memory.
        (H100, "llama-8b", True, 7.68),
        (H100, "llama-1b", True, 3.84),
        (H100, "llama-70b", True, 46.1),  # 69.5 billion weights: here the memory is
    ],
)
def test_forwards_by_hand(card, size, eager, ms):
    assert 1000 * forward_seconds(card, PRESETS[size], eager) == pytest.approx(ms, rel=5e-3)


def test_rounds_by_hand():
    own = predict(H100, PRESETS["llama-8b"], PRESETS["llama-1b"], alpha=0.8, gamma=4)
    assert own.tokens_per_round == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.4096, abs=0.005)
    assert own.round_ms == pytest.approx(4 * 0.82 + 4.98, abs=0.01)
    assert own.speedup == pytest.approx(3.3616 * 4.98 / 8.26, abs=0.01)
    assert predict(H100, PRESETS["llama-8b"], PRESETS["llama-1b"], 1.0, 4).tokens_per_round == 5


def test_the_file_and_the_page_have_the_predictions():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [asdict(x) for x in predictions()]
    assert table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@torch.no_grad()
def test_texts_are_known_and_drafts_err_at_the_chosen_rate(alpha):
    target, draft = pair_of(Run("cpu", True, 10.0))
    continue_by(draft, alpha)
    every = torch.arange(1024)[:, None]
    assert torch.equal(target(every).logits[:, 0].argmax(-1), (every[:, 0] + 1) % 1024)
    right = (draft(every).logits[:, 0].argmax(-1) == (every[:, 0] + 1) % 1024).float().mean()
    assert abs(right - alpha) < 4 * (alpha * (1 - alpha) / 1024) ** 0.5 + 0.01
    prompt = prompts(Run("cpu", True, 10.0), 2, 5)
    assert is_known(torch.cat([prompt, prompt[:, -1:] + 1], dim=1), prompt, 1024)
    assert not is_known(torch.cat([prompt, prompt[:, -1:] + 2], dim=1), prompt, 1024)


def test_a_step_says_its_error_and_what_time_leaves_out(tmp_path):
    run = Run("cpu", True, 1000.0, tmp_path)
    run.ends = 500.0
    with run.step("breaks"):
        raise RuntimeError("no memory")
    with run.step("late", needs=501.0) as begins:
        assert not begins
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(x["part"], x["step"]) for x in lines] == [("error", "breaks"), ("left out", "late")]
    assert "no memory" in lines[0]["error"]
    assert run.failed == ["breaks"]


@pytest.mark.parametrize("way", ["graphs", "compiled"])
def test_forwards_are_timed_alone(way, tmp_path, monkeypatch):
    record(monkeypatch, Recorder())
    run = Run("cpu", True, 1000.0, tmp_path)
    run.ends = 1000.0
    _forwards(run, *pair_of(run), prompts(run), way, 4)
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(x["part"], x["model"], x["ms"] > 0) for x in lines] == [("forward", x, True) for x in ("target", "draft")]


def test_the_check_runs_with_tiny_models(tmp_path):
    check(out=tmp_path, tiny=True, budget=10_000.0, parts=",".join(PARTS))
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]
    parts = Counter(x["part"] for x in lines)
    assert {"equality", "rule", "drawn", "speed", "batch", "real answers", "heads", "long text"} <= {*parts}
    assert not {"error"} & {*parts}
    assert {x["mode"] for x in lines if x["part"] == "rule"} | set(left_out(lines)) == {*REGISTRY}
    assert all(x["text_is_right"] for x in lines if "text_is_right" in x)
    assert lines[-1]["failed"] == []


def left_out(lines):
    """Name the rules that a loaded machine had no time for."""
    steps = (x["step"] for x in lines if x["part"] == "left out")
    return [step.removeprefix("rule ") for step in steps if step.startswith("rule ")]
