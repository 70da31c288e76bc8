"""Splits by prompt."""

from __future__ import annotations

import numpy as np
import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.training.splitting import validation_mask


@pytest.mark.parametrize("seed", range(5))
def test_no_prompt_is_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    prompts = np.repeat(rng.permutation(1000)[:50], rng.integers(1, 9, size=50))
    labels = rng.random(len(prompts)) < 0.2
    mask = validation_mask(labels, prompts, seed=seed)
    assert not set(prompts[mask]) & set(prompts[~mask])
    assert len(set(prompts[mask])) == 5
    assert all(labels[side].any() and not labels[side].all() for side in (mask, ~mask))
    assert (validation_mask(labels, prompts, seed=seed) == mask).all()
    assert (validation_mask(labels, prompts, seed=seed + 1) != mask).any()


def test_a_rare_class_is_on_both_sides():
    prompts = np.repeat(np.arange(60), 2)
    labels = np.isin(prompts, [17, 44])
    for seed in range(5):
        mask = validation_mask(labels | (np.arange(120) % 2 == 0) & labels, prompts, seed=seed)
        assert labels[mask].any()
        assert labels[~mask].any()


def test_a_class_of_one_prompt_cannot_be_validated():
    prompts = np.repeat(np.arange(30), 2)
    with pytest.raises(LossyValueError, match="of 30 prompts 1 have tokens of one class and 30 of the other"):
        validation_mask((prompts == 3) & (np.arange(60) % 2 == 0), prompts)
