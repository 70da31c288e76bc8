"""The divergences of FSD against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from hf_lossy_assist.acceptors import Fsd
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification

SCIPY = {
    "kl": entropy,
    "js": lambda p, q: jensenshannon(p, q) ** 2,
    "tv": lambda p, q: np.abs(p - q).sum() / 2,
}


@pytest.mark.parametrize("divergence", SCIPY)
def test_divergences(divergence: str):
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(9, 0.5), size=(2, 300))
    p[:50, 3] = 0  # forbidden by a processor
    q[50:100, 4] = 0
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    expected = np.array([SCIPY[divergence](*pair) for pair in zip(p, q, strict=True)])
    threshold = float(np.median(expected))
    logits = torch.tensor(p).log().float()[:, None].expand(-1, 2, -1)
    v = Verification(torch.zeros(300, 1, dtype=torch.long), logits, torch.tensor(q).log().float()[:, None])
    clear = np.abs(expected - threshold) > 1e-5
    kept = Fsd(threshold=threshold, divergence=divergence).keep(v)[:, 0].numpy()
    assert (kept == (expected <= threshold))[clear].all()
    assert clear.sum() > 290


def test_the_draft_of_the_target_itself_is_kept():
    logits = torch.randn(50, 2, 9, generator=torch.Generator().manual_seed(0))
    v = Verification(torch.zeros(50, 1, dtype=torch.long), logits, logits[:, :1])
    for divergence in SCIPY:
        assert Fsd(threshold=1e-6, divergence=divergence).keep(v).all()
        assert not Fsd(threshold=0.0, divergence=divergence).keep(v).any()


@pytest.mark.parametrize("do_sample", [False, True])
def test_the_lossless_rule_decides_where_the_target_is_sure(do_sample: bool):
    sure, unsure = torch.tensor([[0.95, 0.04, 0.01], [0.5, 0.4, 0.1]]).log()
    logits = torch.stack([sure, unsure, unsure]).expand(4000, 3, 3)
    draft = torch.tensor([0.6, 0.3, 0.1]).log().expand(4000, 2, 3)
    v = Verification(torch.ones(4000, 2, dtype=torch.long), logits, draft, do_sample, Randomness(0))
    rule = Fsd(threshold=10.0, divergence="kl", strict_above=0.9, published=True)
    assert torch.equal(rule.keep(v)[:, 0], v.lossless[:, 0])
    assert rule.keep(v)[:, 1].all()
    assert Fsd(threshold=10.0, divergence="kl").keep(v).all()
    where = torch.arange(4000) % 2
    corrected = rule.correction(v, where)
    assert torch.equal(corrected[::2], v.residual_distribution(where)[::2])
    assert torch.equal(corrected[1::2], v.target_distribution(where)[1::2])
    assert not do_sample or not torch.equal(v.residual_distribution(where)[0], v.target_distribution(where)[0])
