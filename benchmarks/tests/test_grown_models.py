"""Grown models with their heads, and evaluations of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import hf_lossy_assist
from benchmarks import offloaded
from benchmarks.growing.geometry import Geometry, parse_geometry
from benchmarks.grown_models import app, grow_head, grow_models
from benchmarks.tests.running import run
from benchmarks.tests.test_growing import llama
from hf_lossy_assist import JudgeHead, LossyValueError, VerifierHead, pairs
from hf_lossy_assist.heads import JudgeConfig, ModelIdentity, VerifierConfig
from hf_lossy_assist.tasks import Arithmetic
from tests.tiny_models import noisy_copy, prompt


@pytest.fixture(scope="module")
def small():
    target = llama(num_hidden_layers=1)
    return pairs.Pair(target, noisy_copy(target, 0.05), None, None)


@pytest.fixture(scope="module")
def large(small):
    return grow_models(small, parse_geometry("hidden=96,heads=12,kv_heads=4,vocab=100"), parse_geometry("hidden=128"))


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
    runs = []
    for models, own in ((small, head), (large, grow_head(head, large.target, large.draft))):
        hf_lossy_assist.enable(models.target)
        judged = {"assistant_model": models.draft, "lossy_mode": "judge", "lossy_head": own, "num_assistant_tokens": 4}
        ids = models.target.generate(prompt(8), do_sample=False, max_new_tokens=24, pad_token_id=0, **judged)
        runs.append((ids.tolist(), hf_lossy_assist.last_stats(models.target)))
    assert runs[1][0] == runs[0][0]
    assert runs[1][1].trace == runs[0][1].trace
    assert runs[0][1].accepted_lossy > 0


def test_heads_grow_along(small, large):
    head = JudgeHead(JudgeConfig(**identities(small), threshold=0.5), weight(32), 0.0)
    grown = grow_models(replace(small, heads={"judge": head}), Geometry(hidden=96, heads=12, kv_heads=4), Geometry())
    assert grown.draft is small.draft
    grown.heads["judge"].check(grown.target, grown.draft)
    assert grow_models(small, Geometry(), Geometry()) is small
    assert large.draft.config.vocab_size == large.target.config.vocab_size == 100


def test_grown_models_and_those_on_disk_say_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 8)
    common = ("--modes", "plain,lossless@2", "--limit", 2)
    ways = {
        "as it is": (),
        "grown": ("--grow", "layers=7,hidden=320,heads=10,kv_heads=10,vocab=900", "--grow-draft", "hidden=256"),
        "on disk": [*"--pair arithmetic --task arithmetic --max-new-tokens 8 --weights".split(), tmp_path / "weights"],
    }
    texts = []
    for name, options in ways.items():
        run(offloaded.app if name == "on disk" else app, *options, *common, "--out", tmp_path / name)
        lines = (tmp_path / name / "results.jsonl").read_text().splitlines()
        texts.append([json.loads(line)["text"] for line in lines])
    assert texts[0] == texts[1] == texts[2]
    assert sum(path.stat().st_size for path in (tmp_path / "weights").iterdir()) > 10 * 2**20


@pytest.mark.parametrize("option", ["--grow", "--grow-draft"])
def test_what_can_t_be_grown_is_refused_by_its_option(option):
    with pytest.raises(LossyValueError, match=f"`{option}`.*llama-8b.*'llama-80b'"):
        run(app, option, "llama-80b")
