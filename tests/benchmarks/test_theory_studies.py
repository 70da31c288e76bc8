"""Acceptance and output laws against the oracles of the rules' own tests, and FLOPs against counted tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.theory_studies import (
    RULES,
    acceptance,
    cactus_divergence,
    lossless_round_flops,
    output_law,
    sprinter_round_flops,
    sprinter_run_length_law,
)
from hf_lossy_assist import theory
from tests.acceptors.table import ROWS, Law, Row, row_id
from tests.samples import random_distributions

LOSSLESS = {"lossless": 0.0, "ears": 0.0, "lenience": 1.0, "ensemble": 1.0, "cactus": 0.0}


def tensors(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    p, q = random_distributions(seed)
    return torch.from_numpy(p), torch.from_numpy(q)


def test_every_closed_form_has_an_oracle():
    assert RULES.keys() == LOSSLESS.keys() <= {row.mode for row in ROWS}


@pytest.mark.parametrize("row", [row for row in ROWS if row.mode in RULES], ids=row_id)
def test_closed_forms_are_those_of_the_rules_as_implemented(row: Row):
    setting = next(iter(row.config.values()), 0.0)
    for seed in (0, 2, 4):
        p, q = random_distributions(seed)
        law = Law(p, q, np.empty(0), np.empty(0), do_sample=True)
        kept = q * row.acceptance(law, row.config)
        assert acceptance(row.mode, *tensors(seed), setting).item() == pytest.approx(kept.sum())
        instead = np.broadcast_to(row.correction(law), (len(p), len(p)))
        expected = kept + (q - kept) @ instead
        assert output_law(row.mode, *tensors(seed), setting).numpy() == pytest.approx(expected)


@pytest.mark.parametrize("rule", RULES)
def test_equal_models_lossless_settings_and_batches(rule: str):
    pairs = [tensors(seed) for seed in range(4)]
    p, q = (torch.stack(side) for side in zip(*pairs, strict=True))
    lossless = LOSSLESS[rule]
    assert acceptance(rule, p, p, 0.5).numpy() == pytest.approx(np.ones(4))
    assert output_law(rule, p, p, 0.5).numpy() == pytest.approx(p.numpy())
    assert acceptance(rule, p, q, lossless).numpy() == pytest.approx(theory.lossless_acceptance(p, q).numpy())
    assert output_law(rule, p, q, lossless).numpy() == pytest.approx(p.numpy())


@pytest.mark.parametrize("fpr", [0.0, 0.3, 1.0])
def test_sprinter_s_theorems_1_and_7(fpr: float):
    p, q = tensors(0)
    distance = (p - q).abs().sum().item() / 2
    assert output_law("ensemble", p, q, 1 - fpr).numpy() == pytest.approx(((1 - fpr) * p + fpr * q).numpy())
    assert acceptance("ensemble", p, q, 1 - fpr).item() == pytest.approx(1 - (1 - fpr) * distance)


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.5, 1.0, 3.0])
def test_the_divergence_of_what_cactus_verifies_against(delta: float):
    """Second order says δ; exactly, it is at most ln(1 + 2δ), and there is a p where it is that."""
    p, _ = random_distributions(0)
    raised = np.minimum(1, p + np.sqrt(2 * delta * p * (1 - p)))
    for x in range(len(p)):
        h = np.where(np.arange(len(p)) == x, raised[x], p * (1 - raised[x]) / (1 - p[x]))
        own = sum(a * np.log(a / b) for a, b in zip(h, p, strict=True) if a > 0)
        assert cactus_divergence(torch.tensor(p[x]), delta).item() == pytest.approx(own, abs=1e-9)
    grid = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    exact = cactus_divergence(grid, delta)
    assert exact.max() <= np.log1p(2 * delta) + 1e-9
    most = cactus_divergence(torch.tensor(1 / (1 + 2 * delta), dtype=torch.float64), delta)
    assert most.item() == pytest.approx(np.log1p(2 * delta), abs=1e-5)
    if delta < 0.5:  # the bound that the paper states, with what third order adds
        assert exact[grid <= 0.5].max() <= delta * (1 + delta)


@pytest.mark.parametrize(("tpr", "fpr"), [(0.9, 0.3), (1.0, 0.6), (0.0, 0.4)])
@pytest.mark.parametrize("r", [0, 1, 5])
def test_the_law_of_run_lengths_has_their_mean(tpr: float, fpr: float, r: int):
    law = sprinter_run_length_law(tpr, fpr, r, longest=200)
    assert law.sum().item() == pytest.approx(1)
    mean = (law * torch.arange(201)).sum().item()
    assert mean == pytest.approx(theory.sprinter_expected_run_length(tpr, fpr, r))


def simulated_round(gamma: int, bonus: bool) -> int:
    """Count the target's tokens in a steady state: it reads whatever it has not seen."""
    committed = seen = read = 0
    for _ in range(2):
        prefix = committed + (gamma if bonus else gamma - 1)
        read, seen = prefix + 1 - seen, prefix + 1
        committed += gamma + bonus
    return read


@pytest.mark.parametrize("gamma", [1, 4, 9])
def test_rounds(gamma: int):
    draft, verifier, target = 3.0, 16.0, 70.0
    lossless = lossless_round_flops(gamma, draft, target)
    assert lossless.actual == gamma * draft + simulated_round(gamma, bonus=True) * target
    assert lossless.published == gamma * draft + gamma * target
    sprinter = sprinter_round_flops(gamma, draft, verifier, target)
    assert sprinter.actual == gamma * (draft + verifier) + simulated_round(gamma, bonus=False) * target
    assert sprinter.published == gamma * draft + gamma * verifier + target
