"""The length of SPRINTER's runs against runs drawn one token at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.sprinter_runs import expected_run, table
from hf_lossy_assist.heads import VerifierHead
from hf_lossy_assist.pairs import hub_cards

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("tpr", "fpr", "acceptable"), [(0.3, 0.03, 0.8), (0.9, 0.5, 0.8), (0.8, 0.2, 0.3)])
def test_a_run_is_as_long_as_drawn_ones(tpr, fpr, acceptable):
    """200,000 runs (99.9 % interval): acceptable tokens come until the first other one, after which none is."""
    rng = np.random.default_rng(0)
    lengths = np.zeros(200_000)
    fits, runs = np.full(len(lengths), True), np.full(len(lengths), True)
    while runs.any():
        fits &= rng.random(len(lengths)) < acceptable
        runs &= rng.random(len(lengths)) < np.where(fits, tpr, fpr)
        lengths += runs
    error = 3.3 * lengths.std() / np.sqrt(len(lengths))
    assert error < 0.02 * lengths.mean() + 0.01
    assert abs(expected_run(tpr, fpr, acceptable, 63) - lengths.mean()) < error


def test_the_page_shows_the_kept_texts():
    config = VerifierHead.from_pretrained(hub_cards() / "qwen-coder-verifier").config
    page = (ROOT / "docs/results/judge.md").read_text(encoding="utf-8")
    assert table(ROOT / "benchmarks/qwen-coder/sprinter", config) in page
