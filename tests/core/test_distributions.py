"""Residuals and draws."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from hf_lossy_assist.core.distributions import Randomness, drawable, residual
from tests.tiny_models import noisy_copy, prompt, tiny


def test_residual_is_the_positive_part_or_p_where_there_is_none():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    q = torch.tensor([[0.2, 0.5, 0.3], [0.5, 0.3, 0.2]])
    rest = residual(p, q)
    torch.testing.assert_close(rest[0], torch.tensor([0.3, 0.0, 0.0]))
    torch.testing.assert_close(rest[1], p[1])


def test_equal_seeds_give_equal_draws_and_leave_torch_alone():
    weights = torch.rand(3, 50)
    draws = []
    state = torch.random.get_rng_state()
    for _ in range(2):
        source = Randomness(5)
        like = torch.zeros(1)
        draws.append(
            torch.cat(
                [
                    source.uniform((4,), weights.device),
                    source.categorical(weights).float(),
                    source.keep_mask((4,), 0.5, like),
                ]
            )
        )
    assert torch.equal(*draws)
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(Randomness(6).uniform((4,), weights.device), draws[0][:4])


def test_without_a_seed_torch_s_global_generator_decides():
    torch.manual_seed(3)
    first = Randomness().uniform((4,), torch.device("cpu"))
    torch.manual_seed(3)
    assert torch.equal(first, Randomness().uniform((4,), torch.device("cpu")))


def test_draws_are_those_of_torch_multinomial():
    weights = torch.rand(500, 50, generator=torch.Generator().manual_seed(1))
    weights[:, ::3] = 0
    expected = torch.multinomial(weights, 1, generator=torch.Generator().manual_seed(5))[:, 0]
    assert torch.equal(Randomness(5).categorical(weights), expected)
    assert torch.equal(Randomness(5).categorical(weights.T.contiguous().T), expected)


def test_rows_that_torch_multinomial_refuses_are_told_apart():
    rows = torch.tensor([[0.2, 0.8], [0.0, 3.0], [0.0, 0.0], [0.5, torch.nan], [0.5, torch.inf]])
    for row, good in zip(rows, drawable(rows), strict=True):
        with nullcontext() if good else pytest.raises(RuntimeError, match=r"multinomial|probability tensor"):
            torch.multinomial(row, 1)


def test_a_target_that_says_nan_ends_a_drawn_call():
    """Of a draft, all tokens are refused, and the target's own distribution remains."""
    target = tiny()
    draft = noisy_copy(target)
    with torch.no_grad():
        target.lm_head.weight[5] = torch.nan
    for p, q in ((target, draft), (draft, target)):
        with pytest.raises(RuntimeError, match="no token can be drawn") if p is target else nullcontext():
            out = p.generate(
                prompt(), assistant_model=q, lossy_mode="lossless", do_sample=True, max_new_tokens=9, eos_token_id=None,
                return_dict_in_generate=True,
            )  # fmt: skip
    assert out.lossy_stats.accepted == 0


def test_categorical_keeps_leading_dimensions():
    weights = torch.eye(4)[torch.tensor([[1, 2, 3], [3, 0, 1]])]
    assert Randomness(0).categorical(weights).tolist() == [[1, 2, 3], [3, 0, 1]]
