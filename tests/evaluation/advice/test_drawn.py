"""What rules emit when sampling: exact laws against many draws, closed forms, and bounds that hold for every rule."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from hf_lossy_assist.acceptors import REGISTRY, Acceptor, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation.advice.replay import Emitted, Given, emitted
from hf_lossy_assist.evaluation.modes import usual_modes
from hf_lossy_assist.generation.config import LossyConfig

RULES = {
    mode.label: LossyConfig.from_fields(mode.rule, dict(mode.settings)).rule
    for mode in usual_modes({}, 5, temperature=1.0)
    if mode.rule != "dropmatch"
} | {"ears 1": REGISTRY["ears"](beta=1.0), "thresholds 0.5": REGISTRY["thresholds"](threshold_acc=0.5)}
ALONE = {name: rule for name, rule in RULES.items() if not rule.reads_draft}


def models(positions: int, vocabulary: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits of a target, which forbids a token, and of a draft like it."""
    generator = torch.Generator().manual_seed(seed)
    p = 2 * torch.randn(positions, vocabulary, generator=generator)
    q = p + torch.randn(positions, vocabulary, generator=generator)
    p[:, -1] = -torch.inf
    return p, q


def law_of(rule: Acceptor, p: Tensor, q: Tensor) -> tuple[Emitted, Tensor]:
    found = emitted(rule, p, q)
    return found, found.kept + found.replaced


@pytest.mark.parametrize("name", ALONE)
def test_the_law_is_that_of_many_draws(name):
    """Chi-square at 0.1 % over 100,000 decisions of the rule itself: it would catch a share that is 1 % off."""
    p, q = models(1, 6)
    draws, randomness = 100_000, Randomness(1)
    tokens = randomness.categorical(q.softmax(-1).expand(draws, -1))
    v = Verification(
        tokens[:, None], p[:, None].expand(draws, 2, -1), q[:, None].expand(draws, 1, -1), True, randomness
    )
    decision = decide(ALONE[name], v)
    written = torch.where(decision.n_accepted == 1, tokens, decision.next_token)
    found, law = law_of(ALONE[name], p, q)
    for seen, expected in (
        (torch.bincount(written, minlength=6), law[0]),
        (torch.bincount(decision.n_accepted, minlength=2), torch.stack([1 - found.kept.sum(), found.kept.sum()])),
    ):
        some = expected > 1e-4
        assert seen[~some].sum() < 50
        counts = expected[some] / expected[some].sum() * seen[some].sum()
        assert some.sum() == 1 or stats.chisquare(seen[some], counts, sum_check=False).pvalue > 0.001


@pytest.mark.parametrize("name", ALONE)
def test_one_unit_of_acceptance_costs_at_least_one_of_total_variation(name):
    p, q = models(300, 9, seed=2)
    found, law = law_of(ALONE[name], p, q)
    torch.testing.assert_close(law.sum(-1), torch.ones(300), atol=1e-5, rtol=0)
    alone = p.softmax(-1).minimum(q.softmax(-1)).sum(-1)
    assert (found.kept.sum(-1) <= alone + found.losses()["tv"] + 1e-5).all()
    assert (found.lossy <= found.kept.sum(-1) + 1e-5).all()


@pytest.mark.parametrize("name", ALONE)
def test_given_the_text_tokens_are_kept_as_often_as_in_the_mean(name):
    """Over texts that the target draws, acceptance is the rule's own; lossless keeps min(1, q/p) of each token."""
    p, q = models(50, 9, seed=3)
    found, _ = law_of(ALONE[name], p, q)
    of_p, of_q = p.softmax(-1), q.softmax(-1)
    by_token = torch.stack([found.coupled(torch.full((50,), token)) for token in range(9)], dim=-1)
    assert ((by_token >= 0) & (by_token <= 1 + 1e-5)).all()
    torch.testing.assert_close((of_p * by_token).sum(-1), found.kept.sum(-1), atol=1e-5, rtol=0)
    if name == "lossless":
        expected = (of_q / of_p).clamp(max=1)[:, :-1]
        torch.testing.assert_close(by_token[:, :-1], expected, atol=1e-4, rtol=1e-4)


def test_closed_forms():
    p, q = models(200, 9, seed=4)
    of_p, of_q = p.softmax(-1), q.softmax(-1)
    lossless = of_p.minimum(of_q)
    found, law = law_of(REGISTRY["lossless"](), p, q)
    torch.testing.assert_close(found.kept, lossless, atol=1e-5, rtol=0)
    torch.testing.assert_close(law, of_p, atol=1e-5, rtol=0)
    # EARS adds β (1 - max p) to each ratio, and never keeps what p forbids.
    extra = 0.5 * (1 - of_p.amax(-1, keepdim=True))
    kept = of_q * ((of_p / of_q + extra).clamp(max=1) * (of_p > 0))
    found, _ = law_of(REGISTRY["ears"](beta=0.5), p, q)
    torch.testing.assert_close(found.kept, kept, atol=1e-5, rtol=0)
    # Lenience l keeps with probability min(1, p / (l q)).
    found, _ = law_of(REGISTRY["lenience"](), p, q)
    share = REGISTRY["lenience"]().factor
    torch.testing.assert_close(found.kept, of_q.minimum(of_p / share), atol=1e-5, rtol=0)


def test_given_numbers_are_the_only_ones():
    u = torch.rand(3, 1)
    assert Given(u).uniform((3, 1), torch.device("cpu")) is u
