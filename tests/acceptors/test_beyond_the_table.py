"""What single rules do that the table of rules can't show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import chi2_contingency, entropy
from transformers.generation.utils import _speculative_sampling

from hf_lossy_assist.acceptors import Ensemble, Fsd, Margin, MinP, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from tests.tiny_models import noisy_copy, prompt, tiny


@pytest.mark.parametrize("weight", [0.2, 0.5, 0.9])
def test_greedy_text_equals_stock(weight: float):
    target = tiny("llama")
    draft = noisy_copy(target, 0.03)
    draft.generation_config.num_assistant_tokens = 5
    draft.generation_config.assistant_confidence_threshold = 0.0
    draft.generation_config.eos_token_id = None  # stock drafts stop there, and the mixture is for drafted tokens
    kwargs = {"input_ids": prompt(), "max_new_tokens": 48, "eos_token_id": None, "do_sample": False}
    stock = target.generate(**kwargs, assistant_model=draft, assistant_ensemble_weight=weight)
    mode = {"lossy_mode": "ensemble", "lossy_config": {"weight": weight}, "return_dict_in_generate": True}
    ours = target.generate(**kwargs, assistant_model=draft, **mode)
    assert ours.sequences.tolist() == stock.tolist()
    assert weight > 0.8 or ours.lossy_stats.accepted_lossy > 0


def test_sampling_law_equals_stock():
    """Accepted lengths and next tokens of 6,000 rounds: chi-square of the joint table, p > 1e-5.

    A cell that is off by 0.04 is 4.5 standard errors off.
    """
    n, vocabulary, rounds = 3, 5, 6_000
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(1, n + 1, vocabulary, generator=generator), torch.randn(1, n, vocabulary, generator=generator)
    table = np.zeros((2, n + 1, vocabulary))
    torch.manual_seed(1)
    draws = torch.multinomial(q[0].softmax(-1), rounds, replacement=True).T
    for tokens in draws[:, None]:
        valid, matches = _speculative_sampling(tokens, q, n, p, assistant_ensemble_weight=0.5)
        table[0, int(matches), int(valid[0, -1])] += 1
    v = Verification(draws, p.expand(rounds, -1, -1), q.expand(rounds, -1, -1), True, Randomness(2))
    decision = decide(Ensemble(weight=0.5), v)
    np.add.at(table[1], (decision.n_accepted.numpy(), decision.next_token.numpy()), 1)
    flat = table.reshape(2, -1)
    assert chi2_contingency(flat[:, flat.sum(0) > 0]).pvalue > 1e-5


SCIPY = {"kl": entropy, "js": lambda p, q: jensenshannon(p, q) ** 2, "tv": lambda p, q: np.abs(p - q).sum() / 2}


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


def kept_by(rule: Margin, logits: list[float]) -> list[bool]:
    """Return which of the tokens the rule keeps where the target has these logits."""
    n = len(logits)
    return rule.keep(Verification(torch.arange(n)[:, None], torch.tensor([[logits] * 2] * n))).squeeze(-1).tolist()


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([10.0, 9.5, 9.4, 1.0], [True, True, False, False]),
        ([10.0, 9.0, 8.0, 1.0], [True, False, False, False]),  # a ratio of exactly theta
        ([1.0, 9.0, 9.9, 10.0], [False, False, True, True]),
        ([10.0, 10.0, 9.9, 1.0], [True, True, False, False]),
        ([-1.0, -10.0, -20.0, -30.0], [True, False, False, False]),  # no ratio says anything here
        ([0.0, -1.0, -2.0, -3.0], [True, False, False, False]),
        ([10.0, float("-inf"), float("-inf"), float("-inf")], [True, False, False, False]),
    ],
)
def test_the_published_ratio(logits: list[float], expected: list[bool]):
    assert kept_by(Margin(), logits) == expected
    assert kept_by(Margin(theta=0.9), logits) == expected
    assert kept_by(Margin(theta=1.0), logits) == [i == logits.index(max(logits)) for i in range(len(logits))]


@pytest.mark.parametrize("shift", [0.0, 50.0, -50.0])
def test_a_gap_is_one_of_probabilities(shift: float):
    """A constant on all logits leaves the law, and what a gap says of it, as it is; the ratio turns round."""
    logits = [x + shift for x in (2.0, 1.5, 0.0)]
    assert kept_by(Margin(gap=0.75), logits) == [True, True, False]
    assert kept_by(Margin(gap=0.25), logits) == [True, False, False]
    assert kept_by(Margin(theta=0.9), logits) == [True, shift > 0, False]


def test_a_drawn_best_token_stays_where_the_runner_up_is_close():
    """Also where the lossless rule rejects it; where the runner-up is not close, that rule decides."""
    close, far = torch.tensor([2.0, 1.9, 0.0]), torch.tensor([2.0, 0.5, 0.0])
    draft = torch.tensor([0.98, 0.01, 0.01]).log().expand(400, 2, 3)
    logits = torch.stack([close, far, far]).expand(400, 3, 3)
    v = Verification(torch.zeros(400, 2, dtype=torch.long), logits, draft, True, Randomness(0))
    for rule in (Margin(gap=0.3), Margin(theta=0.9)):
        kept = rule.keep(v)
        assert kept[:, 0].all()
        assert torch.equal(kept[:, 1], v.lossless[:, 1])
    assert not v.lossless.all(0).any()


def test_of_tied_tokens_the_whole_share_keeps_the_argmax_alone():
    v = Verification(torch.tensor([[0], [1], [2]]), torch.tensor([2.0, 2.0, 1.0]).expand(3, 2, -1))
    strict, loose = MinP(tau=1.0), MinP(tau=0.9)
    assert strict.keep(v)[:, 0].tolist() == [True, False, False]
    assert loose.keep(v)[:, 0].tolist() == [True, True, False]
