"""Loading pairs, and what the bundled ones promise."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from dataclasses import asdict
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.bundled_pair.recipe import RECIPES
from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.evaluation.evaluation import evaluate
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.pairs import BUNDLED
from hf_lossy_assist.tasks import Example


def test_a_pair_is_ready_to_use(tiny_pair_folder):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    for model in (pair.target, pair.draft):
        assert model.dtype == torch.float32
        assert not model.training
        assert model.config.vocab_size == len(pair.tokenizer)
    assert pair.tokenizer.padding_side == "left"
    assert pair.task.name == "arithmetic"
    assert pair.heads == {}
    assert repr(pair) == "Pair(target=LlamaForCausalLM, draft=LlamaForCausalLM, task=arithmetic)"
    assert not torch.equal(pair.target.lm_head.weight, pair.draft.lm_head.weight)


def test_a_pair_is_loaded_in_the_dtype_asked_for(tiny_pair_folder):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder, dtype=torch.bfloat16, device="cpu")
    assert pair.target.dtype == pair.draft.dtype == torch.bfloat16


@pytest.mark.parametrize(("ends", "cut", "ended"), [((), False, 1), ((), True, 0), (("\n",), False, 0)])
def test_an_answer_s_tokens_have_the_eos_that_ended_it(tiny_pair_folder, ends, cut, ended):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    pair = dataclasses.replace(pair, task=type("Ending", (type(pair.task),), {"ends": ends})())
    ids = pair.tokenizer(" 7 apples.\n")["input_ids"][1:]  # without BOS
    assert pair.tokens_of(" 7 apples.\n", cut) == [*ids, *[pair.tokenizer.eos_token_id] * ended]


def test_an_unknown_pair_is_an_error_with_the_nearest_name():
    with pytest.raises(
        LossyValueError, match=r"`name` .*\['arithmetic', 'qwen-coder'\], but is 'aritmetic'; did you mean 'arithmetic'"
    ):
        pairs.load("aritmetic")


def test_a_folder_without_weights_is_an_error_that_says_how_to_make_them(tmp_path):
    with pytest.raises(LossyValueError, match=r"`folder` .* has none; .*train_pair"):
        pairs.load("arithmetic", folder=tmp_path)


def test_the_bundled_pair_keeps_its_promises():
    target, draft = (json.loads((BUNDLED / role / "figures.json").read_text()) for role in pairs.ROLES)
    assert target["problems"] == draft["problems"] == 1000
    assert target["accuracy"] >= 0.95
    assert 0.4 <= draft["accuracy"] <= 0.75
    assert target["parameters"] >= 8 * draft["parameters"]
    assert (
        sum(
            file.stat().st_size
            for folder in (BUNDLED, *pairs.hub_cards().glob("arithmetic-*"))
            for file in folder.rglob("*")
            if file.is_file()
        )
        <= 12 * 2**20
    )


@pytest.mark.parametrize("role", pairs.ROLES)
def test_the_bundled_figures_and_cards_belong_to_the_weights(role):
    folder = BUNDLED / role
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["recipe"] == json.loads(json.dumps(asdict(RECIPES[role])))
    assert f"({figures['correct']} of 1,000 test problems" in (folder / "README.md").read_text()
    pair = pairs.load("arithmetic")
    model = getattr(pair, role)
    assert model.num_parameters() == figures["parameters"]
    # 50 of the 1,000 problems: three standard deviations of a binomial either way.
    options = {"tokenizer": pair.tokenizer, "task": pair.task, "limit": 50, "batch_size": 50}
    accuracy = evaluate(model, modes="plain", **options).modes["plain"].score
    spread = (figures["accuracy"] * (1 - figures["accuracy"]) / 50) ** 0.5
    assert abs(accuracy - figures["accuracy"]) <= 3 * spread + 0.02


def test_a_pair_names_its_models_and_reads_prompts_as_its_task_or_a_chat_does(tiny_pair_folder):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    alone = dataclasses.replace(pair, draft=None, task=None, tokenizer=copy.deepcopy(pair.tokenizer))
    assert alone.identity == {"target": dataclasses.asdict(ModelIdentity.of(pair.target)), "draft": None}
    plain = pair.tokenizer("How many?")["input_ids"]
    assert pair.encode("How many?") == pair.task.encode(Example("How many?", ""), pair.tokenizer)
    assert alone.encode("How many?") == plain
    alone.tokenizer.chat_template = "{% for message in messages %}Question: {{ message['content'] }}{% endfor %}"
    asked = alone.tokenizer("Question: How many?", add_special_tokens=False)["input_ids"]
    assert alone.encode("How many?") == asked


@pytest.mark.parametrize("device", ["cuda:77", "gpu"])
def test_a_device_that_is_not_here_is_named_before_anything_is_read(device):
    for load in (pairs.load, pairs.Pair.load):
        with pytest.raises(LossyValueError, match=f"`device` has to be auto or one that is here, .*'cpu'.* '{device}'"):
            load("qwen-coder", device=device)


@pytest.mark.parametrize("assistant", [None, "draft"])
def test_a_pair_may_be_spread_over_devices(tiny_pair_folder, monkeypatch, assistant):
    asked, load = [], AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *given, **more: asked.append(more) or load(*given, **more)
    )
    monkeypatch.setattr(pairs, "load", partial(pairs.load, folder=tiny_pair_folder))
    pairs.Pair.load("arithmetic", device="auto", assistant=assistant)
    assert [more.get("device_map") for more in asked] == ["auto", "auto"]


def test_a_draft_that_means_other_tokens_by_its_numbers_is_refused(tiny_pair_folder, tmp_path):
    target, draft = (str(tiny_pair_folder / role) for role in pairs.ROLES)
    shutil.copytree(draft, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer.json"
    written = json.loads(file.read_text())
    vocabulary = written["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(written))
    with pytest.raises(
        LossyValueError, match=r"`assistant` .* share the target's tokenizer, .* other tokens by 2 numbers"
    ):
        pairs.Pair.load(model=target, assistant=str(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
    assert pairs.Pair.load(model=target, assistant=str(tmp_path)).draft is not None  # it has none of its own
