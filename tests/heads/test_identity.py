"""Heads tell their models from others."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from hf_lossy_assist import JudgeHead, LossyValueError, VerifierHead, quantize_draft, trim_draft_vocabulary
from hf_lossy_assist.heads import ModelIdentity
from tests.eagle3_heads import random_head
from tests.tiny_models import ARCHITECTURES, constant, tiny

ONLY_WEIGHTS = "the weights of the LM head differ"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_is_itself_and_no_other(architecture: str):
    model = tiny(architecture)
    identity = ModelIdentity.of(model)
    assert identity.architecture == type(model).__name__
    assert (identity.hidden_size, identity.vocab_size) == (32, 64)
    assert len(identity.fingerprint) == 8
    assert identity.differences(model) == []
    assert identity.differences(tiny(architecture, seed=1)) == [ONLY_WEIGHTS]


def test_norms_are_those_of_the_head(target: PreTrainedModel):
    rows = [4, 12, 20, 28, 36, 44, 52, 60]
    expected = torch.linalg.vector_norm(target.lm_head.weight.detach().double()[rows], dim=1)
    assert ModelIdentity.of(target).fingerprint == pytest.approx(expected.tolist(), rel=1e-5)


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        weight = model.lm_head.weight
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        weight.copy_((weight / scale).round() * scale)
    return model


def renamed(model: PreTrainedModel) -> PreTrainedModel:
    model.__class__ = type("MyLlama", (type(model),), {})
    return model


def adapted(model: PreTrainedModel) -> PreTrainedModel:
    return get_peft_model(model, LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.to(torch.bfloat16), lambda model: model.to(torch.float16), rounded, renamed,
        torch.compile, adapted, lambda model: torch.compile(adapted(model)),
        lambda model: model.to("meta"),
    ],
    ids=["bfloat16", "float16", "rounded", "subclass", "compiled", "adapted", "both", "without weights"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_same_model_in_another_form(target: PreTrainedModel, change: Callable[[PreTrainedModel], Any]):
    assert ModelIdentity.of(target).differences(change(copy.deepcopy(target))) == []


class Sharded(torch.Tensor):
    def __getitem__(self, index):
        raise NotImplementedError


@pytest.mark.parametrize(
    "kept",
    [lambda weight: torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8), lambda weight: weight.as_subclass(Sharded)],
    ids=["packed", "without rows"],
)
def test_weights_that_cannot_be_read_are_compared_by_the_rest(target: PreTrainedModel, kept: Callable):
    other = copy.deepcopy(target)
    other.lm_head.weight = torch.nn.Parameter(kept(other.lm_head.weight.detach()), requires_grad=False)
    identity = ModelIdentity.of(other)
    assert (identity.hidden_size, identity.vocab_size, identity.fingerprint) == (32, 64, ())
    assert ModelIdentity.of(target).differences(other) == []


def test_offloaded_weights_can_be_read(target: PreTrainedModel):
    offloaded = cpu_offload(copy.deepcopy(target), execution_device=torch.device("cpu"))
    assert offloaded.lm_head.weight.is_meta
    assert ModelIdentity.of(offloaded) == ModelIdentity.of(target)
    assert offloaded.lm_head.weight.is_meta


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("gpt2", "gpt2"),
        ("/home/me/models/llama", "llama"),
        ("./llama", "llama"),
        ("../llama", "llama"),
        ("org/llama", "llama"),  # a folder that looks like an id
        ("", "LlamaForCausalLM"),
    ],
)
def test_names(target: PreTrainedModel, path: str, name: str, tmp_path, monkeypatch):
    (tmp_path / "org" / "llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    model = copy.deepcopy(target)
    model.config._name_or_path = path
    assert ModelIdentity.of(model).name == name


@pytest.mark.parametrize(
    ("recorded", "seed", "config", "differences"),
    [
        ({"name": "org/llama"}, 0, {"_name_or_path": "org/other"}, ["the model is 'org/other', not 'org/llama'"]),
        ({"name": "org/llama"}, 0, {"_name_or_path": "/somewhere/other"}, []),
        (
            {"name": "org/llama", "architecture": "PhiForCausalLM", "hidden_size": 16, "vocab_size": 100},
            1,
            {"_name_or_path": "org/other"},
            [
                "the model is 'org/other', not 'org/llama'",
                "the architecture is LlamaForCausalLM, not PhiForCausalLM",
                "the hidden size is 32, not 16",
                "the vocabulary has 64 tokens, not 100",
            ],
        ),
        ({"revision": "aaa"}, 1, {"_commit_hash": "bbb"}, [f"{ONLY_WEIGHTS}: its revision is bbb, not aaa"]),
        ({"revision": "aaa"}, 1, {"_commit_hash": "aaa"}, [ONLY_WEIGHTS]),
    ],
    ids=["another id", "a folder", "everything", "another revision", "the same revision"],
)
def test_differences_are_named(target: PreTrainedModel, recorded: dict, seed: int, config: dict, differences: list):
    other = tiny("llama", seed=seed)
    for name, value in config.items():
        setattr(other.config, name, value)
    assert dataclasses.replace(ModelIdentity.of(target), **recorded).differences(other) == differences


def test_eagle3_heads_have_an_identity():
    head = random_head()
    identity = ModelIdentity.of(head)
    assert (identity.architecture, identity.vocab_size) == ("Eagle3", len(head.lm_head.weight))
    assert identity.differences(head) == []
    assert identity.differences(random_head(seed=1)) == [ONLY_WEIGHTS]


def test_the_width_of_the_head_counts():
    identity = ModelIdentity.of(constant([0.5, 0.3, 0.2], width=5))
    assert (identity.hidden_size, identity.vocab_size) == (5, 3)


def test_models_without_a_head_are_refused(target: PreTrainedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(target), "get_output_embeddings", lambda self: None)
    for model in (target, target.model, torch.nn.Linear(1, 1), None):
        with pytest.raises(LossyValueError, match=f"a model with an LM head, but is a {type(model).__name__}"):
            ModelIdentity.of(model)


def test_check_accepts_what_it_was_made_for(judge: JudgeHead, verifier: VerifierHead, target, draft):
    for head in (judge, verifier):
        head.check(target, draft)
        head.check(torch.compile(target))


def test_check_names_what_differs(judge: JudgeHead, target: PreTrainedModel):
    with pytest.raises(LossyValueError) as caught:
        judge.check(tiny("gpt2"), target)
    assert "of the target, the architecture is GPT2LMHeadModel, not LlamaForCausalLM" in str(caught.value)
    assert "of the draft, the weights of the LM head differ" in str(caught.value)
    assert "Use a head that was trained for these models" in str(caught.value)


def trimmed(draft):
    return quantize_draft(trim_draft_vocabulary(draft, range(10)))


@pytest.mark.parametrize(
    "change", [quantize_draft, lambda x: quantize_draft(x, "int4"), trimmed], ids=["int8", "int4", "few"]
)
def test_a_cheaper_draft_is_known_by_the_weights_that_it_was_made_from(change):
    draft, other = tiny(), tiny(seed=1)
    identity = ModelIdentity.of(draft)
    assert ModelIdentity.of(change(draft)).fingerprint == identity.fingerprint
    assert identity.differences(change(draft)) == ModelIdentity.of(change(draft)).differences(draft) == []
    assert identity.differences(change(other)) == [ONLY_WEIGHTS]
    assert ModelIdentity.of(change(draft)).differences(other) == [ONLY_WEIGHTS]
