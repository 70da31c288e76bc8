"""Rules made for greedy decoding, when sampling: the law of a position, from the rules' own code, is its closed form.

Laws are exact, to the rounding of float32; see ``exact.emitted``. Notation as in docs/rules.md: k is the published
rule's a, α₀ = Σ min(p, q), and TV the total variation between p and the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_lossy_assist.acceptors import (
    Acceptor,
    AllOf,
    AnyOf,
    Cactus,
    Ears,
    Ensemble,
    Fsd,
    GreedyRule,
    Judge,
    Lenience,
    Lossless,
    MinP,
    NearTop,
    Relaxed,
    Thresholds,
    TopK,
    Typical,
    decide,
)  # fmt: skip
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.trees import Tree
from tests.acceptors.exact import NEAR_FLOAT32 as NEAR
from tests.acceptors.exact import emitted
from tests.acceptors.table import judge_head
from tests.tiny_models import tiny

Array = np.ndarray


@dataclass(frozen=True)
class Some(Acceptor):
    """Keeps the given tokens, and corrects by p: as dropmatch does, but without noise."""

    tokens: tuple[int, ...] = ()
    name = "some"
    paper = "none"

    def keep(self, v: Verification) -> torch.Tensor:
        return torch.isin(v.tokens, torch.tensor(self.tokens, dtype=torch.long)) & v.allowed

    def correction(self, v: Verification, at: torch.Tensor) -> torch.Tensor:
        return v.target_distribution(at)


def distance(one: Array, other: Array) -> float:
    return float(np.abs(one - other).sum() / 2)


def closed_form(p: Array, q: Array, k: Array) -> Array:
    """``p + E - (Σ E)·norm([p - q]+)``, with ``E = [q·k - p]+`` what the published rule keeps beyond p."""
    beyond, left = np.maximum(q * k - p, 0), np.maximum(p - q, 0)
    return p + beyond - beyond.sum() * (left / left.sum() if left.sum() > 0 else p)


@st.composite
def distributions(draw: st.DrawFn, zeros: bool = True) -> tuple[Array, Array]:
    size = draw(st.integers(2, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    sharpness = draw(st.sampled_from([0.3, 1.0, 4.0]))
    rng = np.random.default_rng(seed)
    laws = rng.gamma(1 / sharpness, size=(2, size)) + 1e-3
    if zeros and draw(st.booleans()):
        laws[rng.random((2, size)) < 0.3] = 0
        laws[laws.sum(1) == 0, 0] = 1
    p, q = laws / laws.sum(1, keepdims=True)
    return p, q


share = st.floats(0, 1).map(lambda x: round(x, 3))
GREEDY = st.one_of(
    st.builds(TopK, k=st.integers(1, 4), tolerance=st.sampled_from([0.5, 2.0, float("inf")])),
    st.builds(Typical, epsilon=share, delta=st.sampled_from([0.1, 0.3, 1.0, 1e9])),
    st.builds(MinP, tau=share, top_n=st.sampled_from([None, 1, 2])),
    st.builds(Relaxed, top_n=st.integers(1, 4), delta=share),
    st.builds(Thresholds, threshold_single=share, threshold_acc=share),
    st.builds(Fsd, threshold=st.sampled_from([0.0, 0.05, 0.3, 9.0]), divergence=st.sampled_from(["js", "tv"]),
              strict_above=st.sampled_from([1.0, 0.6])),
)  # fmt: skip
OTHERS = st.one_of(
    st.just(Lossless()),
    st.builds(Ears, beta=share),
    st.builds(Cactus, delta=share),
    st.builds(Lenience, factor=share.map(lambda x: max(x, 0.01))),
    st.builds(NearTop, alpha=share),
    st.builds(Ensemble, weight=share.map(lambda x: max(x, 0.01))),
    st.builds(Some, st.lists(st.integers(0, 5)).map(tuple)),
    GREEDY.map(lambda rule: replace(rule, published=True)),
)


@settings(max_examples=60)
@given(GREEDY, distributions())
def test_the_law_has_its_closed_form_and_no_correction_could_come_nearer(rule: GreedyRule, laws: tuple[Array, Array]):
    p, q = laws
    ours, theirs, exact = (emitted(each, p, q) for each in (rule, replace(rule, published=True), Lossless()))
    assert np.abs(ours.law - closed_form(p, q, theirs.keeps)).max() < NEAR
    assert np.abs(ours.keeps - np.maximum(theirs.keeps, exact.keeps))[q > 0].max() < NEAR
    assert abs(ours.alpha - exact.alpha - distance(ours.law, p)) < NEAR
    assert ours.alpha > max(exact.alpha, theirs.alpha) - NEAR
    assert distance(ours.law, p) < distance(theirs.law, p) + NEAR
    if (np.maximum(q * theirs.keeps - p, 0) == 0).all():
        assert np.abs(ours.law - p).max() < NEAR, "nothing extra is kept: the lossless rule"


@settings(max_examples=60)
@given(
    st.sampled_from([AnyOf, AllOf]), GREEDY, st.lists(OTHERS, min_size=1, max_size=2), st.booleans(), distributions()
)
def test_a_list_with_such_a_rule_gives_a_unit_of_acceptance_for_a_unit_of_distance(
    compose: Any, rule: GreedyRule, others: list[Acceptor], last: bool, laws: tuple[Array, Array]
):
    p, q = laws
    members = (*others, rule) if last else (rule, *others)
    ours, exact = emitted(compose(members), p, q), emitted(Lossless(), p, q)
    assert (ours.keeps > exact.keeps - NEAR)[q > 0].all()
    assert abs(ours.alpha - exact.alpha - distance(ours.law, p)) < NEAR
    each = np.array([emitted(member, p, q).keeps for member in members])
    either = each.max(0) if compose is AnyOf else np.maximum(each.min(0), exact.keeps)
    assert np.abs(ours.keeps - either)[q > 0].max() < NEAR


@pytest.mark.parametrize("rule", [TopK(k=2), Typical(epsilon=0.2), MinP(tau=0.6), Thresholds(threshold_single=0.3)])
@pytest.mark.parametrize("seed", range(3))
def test_siblings_of_a_tree_are_tried_in_turn(rule: GreedyRule, seed: int):
    """Each has a point mass: one is kept if the rule keeps it, or with the probability that the target draws it.

    40,000 rows; a law that is off by 0.015 in any token is 6 standard errors off, and 5 fail.
    """
    rows, size = 40_000, 6
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(size))
    siblings = rng.permutation(size)[:3]
    keeps = emitted(replace(rule, published=True), p, p, with_q=False).keeps > 1 - NEAR
    expected, left = np.zeros(size), p.copy()
    for each in siblings:
        expected[each] += left.sum() if keeps[each] else left[each]
        left[each] = 0
        if keeps[each]:
            left[:] = 0
    expected += left
    tree = Tree(torch.tensor([[-1, -1, -1]]).expand(rows, -1), 1)
    logits = torch.tensor(p).log().float().expand(rows, 4, -1)
    v = Verification(
        torch.tensor(siblings).expand(rows, -1), logits, do_sample=True, randomness=Randomness(seed), shape=tree,
        logits_after=logits,
    )  # fmt: skip
    decision = decide(rule, v)
    first = v.tokens.gather(-1, decision.path[:, :1])[:, 0]
    out = torch.where(decision.n_accepted > 0, first, decision.next_token)
    shares = np.bincount(out, minlength=size) / rows
    assert np.abs(shares - expected).max() < 5 * 0.5 / rows**0.5


def test_a_judge_adds_what_its_base_adds():
    target = tiny()
    head = judge_head(target, target)
    assert Judge(head, base=TopK()).adds_lossless
    assert not Judge(head, base=TopK(published=True)).adds_lossless
    assert not Judge(head).adds_lossless
