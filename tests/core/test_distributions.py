"""Residuals and draws."""

from __future__ import annotations

import torch

from hf_lossy_assist.core.distributions import Randomness, residual


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


def test_a_keep_mask_preserves_the_mean():
    """40,000 entries: the mean's standard error is 0.0033, the bound 4.5 of them."""
    mask = Randomness(0).keep_mask((200, 200), 0.3, torch.zeros(1))
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert abs(mask.mean().item() - 1) < 4.5 * (0.3 / 0.7 / 40_000) ** 0.5


def test_categorical_keeps_leading_dimensions():
    weights = torch.eye(4)[torch.tensor([[1, 2, 3], [3, 0, 1]])]
    assert Randomness(0).categorical(weights).tolist() == [[1, 2, 3], [3, 0, 1]]
