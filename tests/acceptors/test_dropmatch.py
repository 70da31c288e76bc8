"""DropMatch's divergences in little memory are what the formulas say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hf_lossy_assist.acceptors import DropMatch, dropmatch
from hf_lossy_assist.acceptors.dropmatch import js_divergence, majority
from hf_lossy_assist.messages import Verification
from hf_lossy_assist.sampling import Randomness

VOCABULARY = 300


def naive_js(a: Tensor, b: Tensor) -> Tensor:
    """``(KL(a ‖ m) + KL(b ‖ m)) / 2`` with ``m = (a + b) / 2``, in float64."""
    a, b = a.double(), b.double()
    mixed = (a + b) / 2

    def kl(x: Tensor) -> Tensor:
        return (torch.xlogy(x, x) - torch.xlogy(x, mixed)).sum(-1)

    return (kl(a) + kl(b)) / 2


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


def test_bounds_of_the_divergence():
    one, other = torch.eye(2)
    assert js_divergence(one, one) == 0
    assert js_divergence(one, other) == pytest.approx(math.log(2), abs=1e-7)


@pytest.mark.parametrize("room", [1, 4 * 4 * VOCABULARY * 2, 2**30])
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


def test_half_precision_is_read_as_it_is():
    v = verification()
    half = replace(v, dropped_logits=v.dropped_logits.bfloat16())
    rounded = replace(v, dropped_logits=v.dropped_logits.bfloat16().float())
    assert torch.equal(DropMatch(num_paths=4).keep(half), DropMatch(num_paths=4).keep(rounded))
