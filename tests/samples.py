"""Random distributions, and means of samples beside their expectation."""

from __future__ import annotations

import numpy as np


def random_distributions(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(7, 0.6), size=2)
    if seed % 2:  # a token that a processor forbids the target, and one that the draft never proposes
        p[2], q[4] = 0, 0
    return p / p.sum(), q / q.sum()


def assert_mean(samples: np.ndarray, expected: float) -> None:
    """Compare within four standard errors."""
    assert abs(samples.mean() - expected) <= 4 * samples.std() / np.sqrt(len(samples)) + 1e-9
