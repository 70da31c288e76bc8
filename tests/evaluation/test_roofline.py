"""The machine's limit, on numbers that can be worked out by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_lossy_assist.evaluation import roofline
from hf_lossy_assist.evaluation.roofline import Cost, Rates, Roofline
from hf_lossy_assist.theory import DenseDecoder
from tests.models import tiny


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
def test_the_machine_can_do_something(dtype, monkeypatch):
    monkeypatch.setattr(roofline, "_SECONDS", 0.0)
    monkeypatch.setattr(roofline, "_SQUARE", (32, 32))
    rates = roofline.measure_rates(tiny("llama").to(dtype))
    assert rates.bandwidth > 0
    assert rates.flops > 0
