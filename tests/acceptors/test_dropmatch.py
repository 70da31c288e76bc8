"""DropMatch's divergences in little memory are what the formulas say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hf_lossy_assist.acceptors import DropMatch, dropmatch
from hf_lossy_assist.acceptors.dropmatch import majority
from hf_lossy_assist.core.distributions import Randomness, js_divergence
from hf_lossy_assist.core.messages import Verification

VOCABULARY = 300


def verification(do_sample: bool = False, sharpness: float = 3.0, seed: int = 0) -> Verification:
    """Random laws around one: paths and draft differ from it by about as much, so both criteria decide."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, VOCABULARY, generator=generator)

    common = sharpness * noise(1, 6)
    common[..., -50:] = -torch.inf  # as top-k leaves it
    paths = common[:, None, :5] + 0.5 * noise(1, 4, 5)
    return Verification(
        tokens=(common[:, :5] + noise(1, 5)).argmax(-1),
        logits=common,
        draft_logits=common[:, :5] + 0.5 * noise(1, 5),
        do_sample=do_sample,
        randomness=Randomness(seed),
        dropped_logits=paths,
        centroid_logits=paths.mean(1),
    )


def naive_js(a: Tensor, b: Tensor) -> Tensor:
    """``(KL(a ‖ m) + KL(b ‖ m)) / 2`` with ``m = (a + b) / 2``, in float64."""
    a, b = a.double(), b.double()
    mixed = (a + b) / 2

    def kl(x: Tensor) -> Tensor:
        return (torch.xlogy(x, x) - torch.xlogy(x, mixed)).sum(-1)

    return (kl(a) + kl(b)) / 2


def naive_keep(v: Verification) -> Tensor:
    centroid, paths = v.centroid_logits.softmax(-1), v.dropped_logits.softmax(-1)
    inside = naive_js(v.q, centroid) <= naive_js(paths, centroid[:, None]).amax(1)
    return inside | (v.tokens == majority(v.dropped_logits.argmax(-1), centroid))


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 5.0, 40.0])
def test_js_divergence_to_a_millionth(sharpness):
    generator = torch.Generator().manual_seed(1)
    a, b = (sharpness * torch.randn(8, VOCABULARY, generator=generator) for _ in range(2))
    a[:, :100] = -torch.inf
    a, b = a.softmax(-1), b.softmax(-1)
    torch.testing.assert_close(js_divergence(a, b).double(), naive_js(a, b), atol=1e-6, rtol=0)


def test_entropy_of_a_large_vocabulary():
    assert dropmatch.entropy(torch.full((1, 128256), 1 / 128256)).item() == pytest.approx(math.log(128256), rel=1e-6)


@pytest.mark.parametrize("room", [1, 4 * VOCABULARY * 3, 4 * VOCABULARY * 4 * 2, 2**30])  # a head, 3, all 4, all
def test_decisions_do_not_depend_on_the_chunks(monkeypatch, room):
    monkeypatch.setitem(dropmatch._CHUNK_BYTES, "cpu", room)
    kept = torch.cat([DropMatch(num_paths=4).keep(verification(seed=seed)) for seed in range(20)])
    wanted = torch.cat([naive_keep(verification(seed=seed)) for seed in range(20)])
    assert torch.equal(kept, wanted)
    assert 0.2 < wanted.float().mean() < 0.95


def test_inputs_are_left_alone():
    """The laws are worked on in place, but only the rule's own."""
    v = verification()
    before = [x.clone() for x in (v.q, v.dropped_logits, v.centroid_logits, v.draft_logits)]
    DropMatch(num_paths=4).keep(v)
    for now, then in zip((v.q, v.dropped_logits, v.centroid_logits, v.draft_logits), before, strict=True):
        assert torch.equal(now, then)


def coarse_keep(v: Verification, candidates: int) -> Tensor:
    """The rule over candidates, token by token in float64."""
    paths, q = v.dropped_logits.double().softmax(-1), v.q.double()
    centroid, clean = v.centroid_logits.double().softmax(-1), v.logits
    kept = torch.zeros_like(v.tokens, dtype=torch.bool)
    for i, x in enumerate(v.tokens[0].tolist()):
        ids = clean[0, i].topk(candidates).indices.tolist()
        ids = ids if x in ids else [*ids, x]

        def lumped(distribution: Tensor, ids: list[int] = ids) -> Tensor:
            return torch.cat([distribution[..., ids], 1 - distribution[..., ids].sum(-1, keepdim=True)], dim=-1)

        heads, mean = lumped(paths[0, :, i]), lumped(centroid[0, i])
        y = heads[:, :-1].argmax(-1)
        votes = [(y.tolist().count(int(each)), float(mean[each]), int(each)) for each in y]
        inside = naive_js(lumped(q[0, i]), mean) <= naive_js(heads, mean).max()
        kept[0, i] = inside or ids[max(votes)[2]] == x
    return kept


@pytest.mark.parametrize("candidates", [1, 4, 40])
@pytest.mark.parametrize("seed", range(6))
def test_candidates_are_the_rule_over_fewer_outcomes(monkeypatch, candidates: int, seed: int):
    monkeypatch.setitem(dropmatch._CHUNK_BYTES, "cpu", [1, 3 * 4 * VOCABULARY, 2**20][seed % 3])
    v = verification(seed=seed)
    kept = DropMatch(candidates=candidates, dropout=0.1).keep(v)
    assert kept.tolist() == (coarse_keep(v, candidates) & v.allowed).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_ties_go_to_the_same_token_among_candidates(seed: int):
    v = verification(seed=seed)
    dropped = v.dropped_logits.round()
    v = replace(v, dropped_logits=dropped, centroid_logits=dropped.mean(1), tokens=dropped[:, 0].argmax(-1))
    tied = (dropped == dropped.amax(-1, keepdim=True)).sum(-1) > 1
    assert tied.any()
    full, few = (DropMatch(candidates=c)._compare(v, do_sample=False)[2] for c in (None, 250))
    assert full.tolist() == few.tolist()


def test_votes_are_drawn_where_tokens_are():
    """One head and a draft far from it: x is kept as often as the head draws it, or always and never, greedily."""
    rows, law = 4_000, torch.tensor([0.6, 0.4]).log()
    paths, draft = law.expand(rows, 1, 1, 2), torch.tensor([0.01, 0.99]).log().expand(rows, 1, 2)
    for x, share in enumerate((0.6, 0.4)):
        for do_sample, expected in ((True, share), (False, float(x == 0))):
            v = Verification(
                torch.full((rows, 1), x), law.expand(rows, 2, 2), draft, do_sample, Randomness(0),
                dropped_logits=paths, centroid_logits=paths[:, 0],
            )  # fmt: skip
            kept = DropMatch(num_paths=1, dropout=0.1).keep(v).float().mean().item()
            assert abs(kept - expected) <= 4.5 * (0.24 / rows) ** 0.5 * do_sample
