"""SPRINTER's theorems against simulations of its verifier: every figure within 4 standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyValueError, theory
from tests.theory.samples import assert_mean, assert_share, random_distributions

DRAWS = 200_000
RUNS = 100_000
LONGEST = 400
RATES = [(0.9, 0.3), (0.5, 0.5), (0.97, 0.0), (0.0, 0.4), (1.0, 0.6), (0.3, 0.9)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("tpr", "fpr"), [*RATES, (1.0, 1.0), (0.0, 0.0)])
def test_theorems_1_and_7(tpr: float, fpr: float, seed: int):
    """One drafted token, a verifier with these rates, and the lossless rule for what it does not commit."""
    p, q = random_distributions(seed)
    rng = np.random.default_rng(seed + 50)
    x = rng.choice(len(q), DRAWS, p=q)
    committed = rng.random(DRAWS) < np.where(q[x] <= p[x], tpr, fpr)
    kept = rng.random(DRAWS) <= p[x] / q[x]
    rest = np.maximum(p - q, 0)
    instead = rng.choice(len(p), DRAWS, p=rest / rest.sum())
    out = np.where(committed | kept, x, instead)
    law = theory.sprinter_output_law(p, q, fpr)
    for token, probability in enumerate(law):
        assert_share(out == token, probability)
    assert_share(committed | kept, theory.sprinter_acceptance(p, q, fpr))
    assert theory.sprinter_total_variation(p, q, fpr) == pytest.approx(theory.total_variation(p, law), abs=1e-12)


def runs(tpr: float, fpr: float, r: int) -> np.ndarray:
    """How many tokens every run commits; at most LONGEST."""
    rng = np.random.default_rng(r)
    going, lengths = np.ones(RUNS, bool), np.zeros(RUNS, int)
    for i in range(LONGEST):
        going &= rng.random(RUNS) < (tpr if i < r else fpr)
        lengths += going
        if not going.any():
            break
    return lengths


@pytest.mark.parametrize("r", [0, 1, 5, 12])
@pytest.mark.parametrize(("tpr", "fpr"), RATES)
def test_theorems_2_and_3(tpr: float, fpr: float, r: int):
    lengths = runs(tpr, fpr, r)
    law = theory.sprinter_run_length_law(tpr, fpr, r, longest=40)
    for i, probability in enumerate(law.tolist()):
        if probability == 0 or probability * RUNS > 30:  # where a count of events is nearly normal
            assert_share(lengths == i, probability)
    assert_share(lengths <= 10, law[:11].sum().item())
    assert_mean(lengths, theory.sprinter_expected_run_length(tpr, fpr, r))
    assert_mean(0.02 * (lengths + 1), theory.sprinter_stopping_time(tpr, fpr, r, 0.02))
    for bound in (1, 3, 20):
        assert_mean(np.minimum(lengths, bound), theory.sprinter_expected_run_length(tpr, fpr, r, bound))
        assert_mean(np.minimum(lengths + 1, bound) * 0.02, theory.sprinter_stopping_time(tpr, fpr, r, 0.02, bound))


@pytest.mark.parametrize("r", [1, 5, 30])
@pytest.mark.parametrize(("a", "b"), RATES)
def test_the_paper_s_formulas(a: float, b: float, r: int):
    if a < 1:
        run_length = (a - a**r) / (1 - a) + a**r / (1 - b)
        time = 0.1 * ((1 - a**r) / (1 - a) + a**r / (1 - b))
    else:
        run_length, time = r - 1 + 1 / (1 - b), 0.1 * (r + 1 / (1 - b))
    assert theory.sprinter_expected_run_length(a, b, r) == pytest.approx(run_length)
    assert theory.sprinter_stopping_time(a, b, r, 0.1) == pytest.approx(time)


def test_limits():
    run_length = theory.sprinter_expected_run_length
    assert run_length(1 - 1e-12, 0.5, 5) == pytest.approx(run_length(1, 0.5, 5)) == 6
    assert run_length(0.5, 1, 3) == run_length(1, 1, 0) == math.inf
    assert theory.sprinter_stopping_time(0.5, 1, 3, 0.1) == math.inf
    assert run_length(0, 1, 3) == 0, "no run gets past the acceptable tokens"
    assert run_length(0.5, 1, 1, max_draft=10) == pytest.approx(0.5 * 10)
    assert run_length(1, 0, 0) == 0
    assert theory.sprinter_run_length_law(1, 1, 2, longest=9).sum() == 0, "no run ends"
    assert run_length(0.9, 0.5, 5, max_draft=10_000) == pytest.approx(run_length(0.9, 0.5, 5))


def test_arrays_and_tensors():
    tpr, fpr = np.linspace(0, 1, 5), np.array([[0.1], [0.5], [1.0]])
    grid = theory.sprinter_expected_run_length(tpr, fpr, 5)
    assert grid.shape == (3, 5)
    each = [[theory.sprinter_expected_run_length(float(a), float(b[0]), 5) for a in tpr] for b in fpr]
    assert grid == pytest.approx(np.array(each))
    law = theory.sprinter_run_length_law(torch.tensor(tpr), torch.tensor(fpr), 5, longest=7)
    assert law.shape == (3, 5, 8)
    assert torch.is_tensor(law)
    times = theory.sprinter_stopping_time(tpr, 0.5, 5, 0.1)
    assert times == pytest.approx(0.1 * (theory.sprinter_expected_run_length(tpr, 0.5, 5) + 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tpr": 1.1}, "`tpr`.*1.1"),
        ({"fpr": -0.1}, "`fpr`.*-0.1"),
        ({"fpr": np.array([0.5, np.nan])}, "`fpr`"),
        ({"r": -1}, "`r`.*-1"),
        ({"r": 2.0}, "`r`.*int"),
        ({"max_draft": 0}, "`max_draft`.*>= 1"),
        ({"t_draft": -1}, "`t_draft`"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict, message: str):
    given = {"tpr": 0.5, "fpr": 0.5, "r": 3, "t_draft": 0.1} | arguments
    with pytest.raises(LossyValueError, match=message):
        theory.sprinter_stopping_time(**given)
