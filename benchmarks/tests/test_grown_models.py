"""Grown models with their heads, and the bench on them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from benchmarks.growing.geometry import Geometry, parse_geometry
from benchmarks.grown_models import app, grow_head, grow_models
from benchmarks.tests.running import commands, run
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import PromptBatch, run_request
from hf_lossy_assist.heads import JudgeConfig, JudgeHead, ModelIdentity, VerifierConfig, VerifierHead
from hf_lossy_assist.tasks import Arithmetic
from tests.tiny_models import noisy_copy, prompt, tiny


@pytest.fixture(scope="module")
def small():
    target = tiny()
    target.generation_config.eos_token_id = None
    return Models(target, noisy_copy(target, 0.05))


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
    batch, judged = PromptBatch(prompt(8), torch.ones_like(prompt(8))), DecodingMode("judge", "judge", {}, 4)
    runs = [
        run_request(Models(m.target, m.draft, {"judge": h}), judged, batch, 24)
        for m, h in ((small, head), (large, grow_head(head, large.target, large.draft)))
    ]
    assert runs[1].rows[0].tolist() == runs[0].rows[0].tolist()
    assert runs[1].stats.trace == runs[0].stats.trace
    assert runs[0].stats.accepted_lossy > 0


def test_heads_grow_along(small, large):
    head = JudgeHead(JudgeConfig(**identities(small), threshold=0.5), weight(32), 0.0)
    grown = grow_models(replace(small, heads={"judge": head}), Geometry(hidden=96, heads=12, kv_heads=4), Geometry())
    assert grown.draft is small.draft
    grown.heads["judge"].check(grown.target, grown.draft)
    assert grow_models(small, Geometry(), Geometry()) is small
    assert large.draft.config.vocab_size == large.target.config.vocab_size == 100


def evaluate(*arguments, status=0):
    return run(app, *arguments[:-1], "evaluate", "--pair", "arithmetic", *arguments[-1], "--limit", 2, status=status)


def test_grown_models_say_the_same(tiny_pair_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 8)
    common = ["--set", f"folder={tiny_pair_folder}", "--modes", "plain,lossless@2"]
    grown = ("--grow", "layers=3,hidden=96,heads=6,vocab=900", "--grow-draft", "hidden=96")
    evaluate(*grown, [*common, "--out", tmp_path / "grown"])
    evaluate([*common, "--out", tmp_path / "small"])
    texts = [
        [json.loads(line)["text"] for line in (tmp_path / name / "results.jsonl").read_text().splitlines()]
        for name in ("grown", "small")
    ]
    assert texts[0] == texts[1]
    manifest = json.loads((tmp_path / "grown" / "manifest.json").read_text())
    assert [manifest[role]["vocab_size"] for role in ("target", "draft")] == [900, 900]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grow", "llama-80b"), "did you mean 'llama-8b'"),
        (("--grow-draft", "width=3"), "`--grow-draft`"),
        (("--grow", "layers=0"), "`--grow`"),
    ],
)
def test_errors_are_one_line(tiny_pair_folder, arguments, message):
    (line,) = evaluate(*arguments, ["--set", f"folder={tiny_pair_folder}"], status=2).stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("command", commands("grown_models"), ids=lambda command: command[-1])
def test_documented_commands(tmp_path, command, monkeypatch):
    """As they stand, but on sizes and a device that every machine has, and with nothing translated to machine code."""
    compile_module = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_module(module, backend="eager"))
    small = {"--grow": "layers=5", "--grow-draft": "layers=3", "--limit": "1"}
    for option in small.keys() & set(command):
        command[command.index(option) + 1] = small[option]
    command = [word.replace("device=cuda", "device=cpu") for word in command]
    run(app, *command, "--max-new-tokens", 3, "--set", "threads=1", "--out", tmp_path)
    assert (tmp_path / "plot.png").exists()
