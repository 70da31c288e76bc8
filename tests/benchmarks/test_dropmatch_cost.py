"""DropMatch's cost: the bounds at large geometries, by bytes and operations counted by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from benchmarks.dropmatch_cost import H200, TARGETS, Round, app, computed, measured
from benchmarks.roofline import Rates
from tests.benchmarks.running import run

SMALL = LlamaConfig(
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=64,
    vocab_size=96,
)


@pytest.mark.parametrize("name", TARGETS)
def test_bounds_on_a_large_gpu(name):
    config, bound = TARGETS[name]
    assert computed(Round.of(config), H200).share <= bound


def test_parts_by_hand():
    """Memory so slow that only bytes count, and no time to start a kernel."""
    cost = computed(Round.of(SMALL, gamma=2, paths=3), Rates(bandwidth=1.0, flops=1e30), launch=0)
    d, vocabulary = 32, 96
    blocks = 2 * d * d + 2 * d * 16 + 3 * d * 64
    assert cost.forward == 2 * (blocks + d * vocabulary + 3 * vocabulary)
    assert cost.head == 2 * 6 * vocabulary  # the dropped rows' logits; the weights are read anyway
    assert cost.masks == 3 * 6 * d * 2
    assert cost.divergence == vocabulary * (6 * (2 * 2 + 13 * 4) + 2 * 18 * 4)
    assert cost.share == (cost.head + cost.masks + cost.divergence) / cost.forward


def test_operations_count_where_they_are_slower():
    cost = computed(Round.of(SMALL, gamma=2, paths=3), Rates(bandwidth=1e30, flops=1.0), launch=0)
    assert cost.head == 2 * 6 * 32 * 96


def test_timed_parts():
    cost = measured(Round.of(SMALL, gamma=2, paths=3), torch.device("cpu"), slice_bytes=2**12, seconds=0.001)
    assert min(cost.forward, cost.masks, cost.divergence) > 0
    assert cost.head >= 0


def test_a_bad_device_is_one_clean_line():
    (line,) = run(app, "--device", "abacus", status=2).stderr.splitlines()
    assert line.startswith("error: `--device`")
