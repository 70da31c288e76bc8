"""Heads of grown models say what they said before."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist.bench.contenders import Models, WithRule
from hf_lossy_assist.bench.geometry import parse_geometry
from hf_lossy_assist.bench.growing import grow
from hf_lossy_assist.bench.grown_heads import grow_head
from hf_lossy_assist.bench.trials import Batch, Workload, attempt
from hf_lossy_assist.heads import JudgeConfig, JudgeHead, ModelIdentity, VerifierConfig, VerifierHead
from tests.models import noisy_copy, prompt, tiny


@pytest.fixture(scope="module")
def small():
    target = tiny()
    target.generation_config.eos_token_id = None
    return Models(target, noisy_copy(target, 0.05))


@pytest.fixture(scope="module")
def large(small):
    return Models(
        grow(small.target, parse_geometry("hidden=96,heads=12,kv_heads=4,vocab=100")),
        grow(small.draft, parse_geometry("hidden=128,vocab=100")),
    )


def identities(models):
    return {"target": ModelIdentity.of(models.target), "draft": ModelIdentity.of(models.draft), "task": "none"}


def weight(width):
    return torch.randn(width, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def states(models, ids):
    return {role: getattr(models, role).model(input_ids=ids).last_hidden_state for role in ("target", "draft")}


@pytest.mark.parametrize("read", ["target", "draft", "both"])
@pytest.mark.parametrize("positions", ["draft", "both"])
def test_judges_of_any_states(small, large, read, positions):
    config = JudgeConfig(**identities(small), threshold=0.4, models=read, positions=positions)
    head = JudgeHead(config, weight(config.width), 0.3)
    grown = grow_head(head, large.target, large.draft)
    grown.check(large.target, large.draft)
    assert (grown.config.threshold, grown.config.columns) == (0.4, config.columns)
    ids = prompt(12)
    said = []
    for models, judge in ((small, head), (large, grown)):
        seen = states(models, ids)
        said.append(judge.logit(torch.cat([seen[name.split("_")[0]] for name in judge.config.columns], dim=-1)))
    torch.testing.assert_close(said[1], said[0], rtol=1e-4, atol=1e-4)
    assert head.weight.shape == (config.width,)


def test_verifiers(small, large):
    head = VerifierHead(VerifierConfig(**identities(small), position="previous"), weight(32), 0.1)
    grown = grow_head(head, large.target, large.draft)
    ids = prompt(12)
    torch.testing.assert_close(
        grown.logit(states(large, ids)["draft"]), head.logit(states(small, ids)["draft"]), rtol=1e-4, atol=1e-4
    )


def test_a_judged_run_of_grown_models_is_that_of_the_small_ones(small, large):
    head = JudgeHead(JudgeConfig(**identities(small), threshold=0.5), weight(32), 0.0)
    ids, work = prompt(8), Workload(24)
    batch, rule = Batch(ids, torch.ones_like(ids), 0), WithRule("judge", "judge", {}, 4)
    runs = [
        attempt(Models(m.target, m.draft, {"judge": h}), rule, batch, work)
        for m, h in ((small, head), (large, grow_head(head, large.target, large.draft)))
    ]
    assert runs[1].rows[0].tolist() == runs[0].rows[0].tolist()
    assert runs[1].stats.trace == runs[0].stats.trace
    assert runs[0].stats.accepted_lossy > 0
