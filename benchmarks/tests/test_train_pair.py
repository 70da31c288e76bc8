"""The bundled pair's recipe, training, and ``python -m benchmarks.train_pair``."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import train_pair
from benchmarks.bundled_pair.pretraining import padded, position_weights, rate, texts, train_model
from benchmarks.bundled_pair.recipe import RECIPES, TASK, Cycle, build_model, build_tokenizer, save_model
from benchmarks.tests.running import run
from benchmarks.train_pair import app
from hf_lossy_assist import pairs
from hf_lossy_assist.tasks import Arithmetic
from tests.tiny_pair import TINY

build_tokenizer = functools.cache(build_tokenizer)  # whose training takes seconds, and comes to the same


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(200)


def weights_of(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_tokenizer_keeps_digits_and_texts(tokenizer):
    text = TASK.examples("test", 1)[0].prompt + " Ünusual — 5 €"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids
    assert not [token for token in tokenizer.get_vocab() if len(token) > 1 and any(x.isdigit() for x in token)]
    assert build_tokenizer.__wrapped__(200).get_vocab() == tokenizer.get_vocab()
    solutions = [example.solution for example in TASK.examples("test", 500)]
    longest = max(map(len, build_tokenizer(1000)(solutions, add_special_tokens=False)["input_ids"]))
    assert longest < Arithmetic.max_new_tokens


def test_texts_are_the_same_from_any_step_on(tokenizer):
    recipe = dataclasses.replace(TINY, cycles=(Cycle(19),))
    forwards, backwards = texts(recipe, tokenizer), texts(recipe, tokenizer)
    for step in range(18, -1, -1):
        _, batch = backwards[step]
        for (ids, start), (other, own) in zip(batch, [forwards[i] for i in range(19)][step][1], strict=True):
            assert torch.equal(ids, other)
            assert start == own


def test_answers_and_their_ends_are_learned(tokenizer):
    for step in range(TINY.steps):
        ids, answers = padded(texts(TINY, tokenizer)[step][1], tokenizer.pad_token_id)
        assert ids.shape[1] % 16 == 0
        for row, answer in zip(ids, answers, strict=True):
            assert row[answer][-1] == tokenizer.eos_token_id
            assert TASK.extract_answer(tokenizer.decode(row[answer])) is not None
            prompt = tokenizer.decode(row[: int(answer.nonzero()[0])], skip_special_tokens=True)
            assert prompt.endswith("\nAnswer:")


def test_every_cycle_has_its_own_peak_and_weights():
    recipe = dataclasses.replace(TINY, cycles=(Cycle(200), Cycle(100, 1e-3, number_weight=4.0)))
    for first, cycle in ((0, recipe.cycles[0]), (200, recipe.cycles[1])):
        rates = [rate(recipe, first + step) for step in range(cycle.steps)]
        top = rates.index(max(rates))
        assert top == int(0.06 * cycle.steps) - 1
        assert rates == sorted(rates[:top]) + sorted(rates[top:], reverse=True)
        assert (rates[top], rates[-1]) == pytest.approx((cycle.peak_lr, cycle.peak_lr / 100))
    before, numeric = torch.tensor([5, 7, 9]), torch.tensor([7, 9])
    assert position_weights(recipe, 199, before, numeric).tolist() == [1, 1, 1]
    assert position_weights(recipe, 200, before, numeric).tolist() == [1, 4, 4]


def test_training_lowers_the_loss_and_only_an_equal_recipe_goes_on(tokenizer, tmp_path, capsys):
    recipe = dataclasses.replace(TINY, cycles=(Cycle(24),), batch=4)
    first = train_model(recipe, tokenizer, tmp_path, logging_steps=1)
    (state,) = tmp_path.glob("*/checkpoint-24/trainer_state.json")
    losses = [x["loss"] for x in json.loads(state.read_text())["log_history"] if "loss" in x]
    assert len(losses) == 24
    assert sum(losses[-4:]) < sum(losses[:4]) - 0.2
    assert "continuing" not in capsys.readouterr().out
    again = train_model(recipe, tokenizer, tmp_path)
    assert "continuing after checkpoint-24" in capsys.readouterr().out
    assert torch.equal(weights_of(first), weights_of(again))
    train_model(dataclasses.replace(TINY, seed=5), tokenizer, tmp_path)
    assert "continuing" not in capsys.readouterr().out


def test_weights_are_stored_in_bfloat16_and_nothing_else_is_lost(tokenizer, tmp_path):
    model = build_model(TINY, tokenizer)
    expected = weights_of(model).to(torch.bfloat16)
    save_model(model, tokenizer, tmp_path)
    stored = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert stored.dtype == torch.bfloat16
    assert torch.equal(weights_of(stored), expected)


def test_a_pair_is_trained_and_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 4)
    monkeypatch.setattr(train_pair, "build_tokenizer", build_tokenizer)
    monkeypatch.setattr(train_pair, "_QUICK", {**train_pair._QUICK, "batch": 1, "cycles": (Cycle(3), Cycle(2))})
    run(app, "--quick", "--out", tmp_path, "--threads", 1)
    printed = capsys.readouterr().out
    for role in pairs.ROLES:
        assert f"{role}: 0 of 20 answers right (0.0 %)" in printed
        figures = json.loads((tmp_path / role / "figures.json").read_text())
        assert (figures["problems"], figures["correct"], figures["unanswered"]) == (20, 0, 20)
        recipe = dataclasses.replace(RECIPES[role], **train_pair._QUICK)
        assert figures["recipe"] == json.loads(json.dumps(dataclasses.asdict(recipe)))
    assert pairs.load("arithmetic", folder=tmp_path).target.config.num_hidden_layers == 1
    weights = (tmp_path / "draft" / "model.safetensors").read_bytes()
    run(app, "--quick", "--out", tmp_path, "--role", "draft")
    printed = capsys.readouterr().out
    assert "target" not in printed
    assert "continuing after checkpoint-5" in printed
    assert (tmp_path / "draft" / "model.safetensors").read_bytes() == weights
