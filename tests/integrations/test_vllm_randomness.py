"""Random numbers of vLLM's requests follow from seeds and positions."""

import numpy as np
import torch

from hf_lossy_assist.integrations.vllm.randomness import KeyedRandomness, keys_of, seed_of
from tests.acceptors.fixtures import chi_square_p


def test_draws_follow_from_seed_and_position():
    seeds, positions = torch.tensor([1, 1, 2]), torch.tensor([5, 6, 5])
    u = KeyedRandomness(keys_of(seeds, positions)).uniform((3, 4), torch.device("cpu"))
    assert len(u.unique()) == 12
    again = KeyedRandomness(keys_of(seeds[2:], positions[2:])).uniform((1, 4), torch.device("cpu"))
    assert (again == u[2:]).all()
    assert seed_of("a", 0) == seed_of("a", 0) != seed_of("b", 0) != seed_of("b", 1)


def test_draws_are_uniform_and_independent():
    randomness = KeyedRandomness(keys_of(torch.zeros(100_000, dtype=torch.long), torch.arange(100_000)))
    u, w = (randomness.uniform((100_000, 2), torch.device("cpu")) for _ in range(2))
    cells = ((u[:, 0] * 10).long() * 10 + (w[:, 1] * 10).long()).bincount(minlength=100)
    assert chi_square_p(cells.numpy(), np.full(100, 0.01)) > 1e-5
    weights = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3]).expand(100_000, -1)
    assert chi_square_p(randomness.categorical(weights).bincount(minlength=5).numpy(), weights[0].numpy()) > 1e-5
    mask = randomness.keep_mask((100_000, 3), 0.25, u)
    assert abs((mask == 0).float().mean() - 0.25) < 0.005
    assert abs(mask.mean() - 1) < 0.01
