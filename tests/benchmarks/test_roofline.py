"""The machine's limit, on numbers that can be worked out by hand."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import roofline
from benchmarks.roofline import Cost, Rates, Roofline, mode_limits
from hf_lossy_assist.theory import DenseDecoder
from tests.benchmarks.running import README, run
from tests.tiny_models import tiny


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(roofline, "_SECONDS", 0.0)
    monkeypatch.setattr(roofline, "_SQUARE", (32, 32))


def shape(weights):
    return DenseDecoder(block_weights=weights, head_weights=0, embedding_weights=0, query_width=0, windows=())


TARGET = Cost(weight_bytes=1000, cache_bytes=2, decoder=shape(500))
DRAFT = Cost(weight_bytes=100, cache_bytes=1, decoder=shape(50))
MEMORY_BOUND = Rates(bandwidth=1000.0, flops=1e12)
COMPUTE_BOUND = Rates(bandwidth=1e12, flops=1000.0)


def test_a_pass_takes_as_long_as_the_slower_of_its_two_sides():
    assert TARGET.seconds(MEMORY_BOUND, tokens=6) == pytest.approx(1.0)
    assert TARGET.seconds(MEMORY_BOUND, tokens=6, context=50) == pytest.approx(1.1)
    assert TARGET.seconds(MEMORY_BOUND, context=50, batch=4) == pytest.approx(1.4)
    assert TARGET.seconds(COMPUTE_BOUND, tokens=6) == pytest.approx(6.0)
    assert TARGET.seconds(COMPUTE_BOUND, tokens=6, batch=2) == pytest.approx(12.0)


def test_rounds_of_reads():
    limit = Roofline(TARGET, DRAFT, MEMORY_BOUND, MEMORY_BOUND, context=0)
    assert limit.tokens_per_second(1.0, 0) == pytest.approx(1.0)
    assert limit.tokens_per_second(4.5, 5) == pytest.approx(4.5 / 1.5)
    assert limit.tokens_per_second(4.5, 2.5) == pytest.approx(4.5 / 1.25)
    batch = Roofline(TARGET, DRAFT, MEMORY_BOUND, MEMORY_BOUND, context=0, batch=8)
    assert batch.tokens_per_second(4.5, 5) == pytest.approx(8 * 4.5 / 1.5)


def test_rounds_of_products():
    limit = Roofline(TARGET, DRAFT, COMPUTE_BOUND, COMPUTE_BOUND, context=0)
    assert limit.tokens_per_second(4.0, 5) == pytest.approx(4.0 / (5 * 0.1 + 6 * 1.0))
    # Between five and six drafted tokens lies a round of each.
    assert limit.tokens_per_second(4.0, 5.5) == pytest.approx(4.0 / (5.5 * 0.1 + 6.5 * 1.0))


def test_share_of_the_best_speed():
    cost = Cost(100, 0, shape(0))
    limit = Roofline(cost, cost, Rates(1e4, 1.0), Rates(1e5, 1.0), context=0)  # 10 ms a target forward, 1 ms a draft's
    rounds = [("alone", 1.0, 0, 10.0), ("lossless", 20 / 6, 5, 37.5), ("unknown", None, None, 1.0)]
    names = ("label", "tokens_per_round", "draft_calls_per_round")
    modes = [dict(zip(names, row, strict=False), tokens_per_second={"median": row[3]}) for row in rounds]
    alone, lossless = mode_limits(limit, modes)
    assert (alone.roofline, alone.share) == (pytest.approx(100.0), pytest.approx(0.1))
    assert (lossless.roofline, lossless.share) == (
        pytest.approx((20 / 6) / 0.015),
        pytest.approx(37.5 * 0.015 * 6 / 20),
    )


def test_measured_rows_are_compared_with_the_machine(tmp_path, quick):
    rows = README.parent / "overhead" / "bench.jsonl"
    out = tmp_path / "limits.jsonl"
    printed = run(roofline.app, rows, "--threads", 1, "--out", out).stdout
    origin, limit, *modes = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert (origin["measured"], limit["context"], limit["batch"]) == (str(rows), 128, 1)
    assert limit["target_rates"]["bandwidth"] > 0
    assert [mode["label"] for mode in modes] == ["target alone", "stock assisted", "lossless"]
    assert all(mode["share"] == pytest.approx(mode["tokens_per_second"] / mode["roofline"]) for mode in modes)
    assert "TFLOP/s" in printed
    (line,) = run(roofline.app, tmp_path / "none.jsonl", status=2).stderr.splitlines()
    assert "`MEASURED` has to be a bench.jsonl that is there" in line


def test_what_a_pass_reads():
    untied, tied = (
        tiny("llama"),
        LlamaForCausalLM(LlamaConfig(**{**tiny("llama").config.to_dict(), "tie_word_embeddings": True})),
    )
    everything = sum(p.numel() for p in untied.parameters())
    cost = Cost.of(untied)
    assert cost.weight_bytes == 4 * (everything - 64 * 32)
    assert Cost.of(tied).weight_bytes == cost.weight_bytes
    assert Cost.of(untied.to(torch.bfloat16)).weight_bytes == cost.weight_bytes / 2
    assert cost.cache_bytes == 2 * 2 * 2 * 8 * 4
    linear = sum(p.numel() for name, p in untied.named_parameters() if "proj" in name or "lm_head" in name)
    assert cost.decoder.forward(3).total - cost.decoder.forward(3).attention == 2 * 3 * linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_machine_can_do_something(dtype, quick):
    rates = roofline.measure_rates(tiny("llama").to(dtype))
    assert rates.bandwidth > 0
    assert rates.flops > 0
