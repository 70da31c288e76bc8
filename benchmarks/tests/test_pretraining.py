"""Training: exactly resumable, and stored as it is loaded."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.bundled_pair.pretraining import cycle_schedule, position_weights, save_model, train_model
from benchmarks.bundled_pair.recipe import Cycle, build_tokenizer
from tests.tiny_pair import TINY


class Interrupted(Exception):
    """Stands for a killed run."""


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(100)


def weights_of(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def rates_of(recipe) -> list[float]:
    """Return the learning rate of every step, of runs that begin with it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    return [cycle_schedule(recipe, optimizer, step).get_last_lr()[0] for step in range(recipe.steps)]


def test_a_resumed_run_ends_with_the_same_weights(tokenizer, tmp_path):
    straight = train_model(TINY, tokenizer, tmp_path / "straight.safetensors", checkpoint_every=3)

    def interrupt(step: int, loss: float) -> None:
        if step == 4:
            raise Interrupted

    checkpoint = tmp_path / "resumed.safetensors"
    with pytest.raises(Interrupted):
        train_model(TINY, tokenizer, checkpoint, interrupt, checkpoint_every=3)
    steps = []
    resumed = train_model(TINY, tokenizer, checkpoint, lambda step, loss: steps.append(step), checkpoint_every=3)
    assert steps == [3, 4, 5, 6]
    assert torch.equal(weights_of(straight), weights_of(resumed))


def test_a_finished_run_is_not_trained_again(tokenizer, tmp_path):
    checkpoint = tmp_path / "done.safetensors"
    first = train_model(TINY, tokenizer, checkpoint, checkpoint_every=3)
    steps = []
    again = train_model(TINY, tokenizer, checkpoint, lambda step, loss: steps.append(step), checkpoint_every=3)
    assert steps == [TINY.steps]
    assert torch.equal(weights_of(first), weights_of(again))


def test_another_recipe_s_checkpoint_is_not_continued(tokenizer, tmp_path):
    checkpoint = tmp_path / "other.safetensors"
    train_model(TINY, tokenizer, checkpoint, checkpoint_every=3)
    steps = []
    train_model(
        dataclasses.replace(TINY, seed=5),
        tokenizer,
        checkpoint,
        lambda step, loss: steps.append(step),
        checkpoint_every=3,
    )
    assert steps[0] == 0


def test_training_lowers_the_loss(tokenizer, tmp_path):
    losses = []
    recipe = dataclasses.replace(TINY, cycles=(Cycle(24),), batch=4)
    train_model(recipe, tokenizer, tmp_path / "c.safetensors", lambda step, loss: losses.append(loss))
    assert sum(losses[-4:]) < sum(losses[1:5]) - 0.2


def test_the_learning_rate_goes_up_once_and_down_once():
    recipe = dataclasses.replace(TINY, cycles=(Cycle(200),))
    rates = rates_of(recipe)
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(recipe.cycles[0].peak_lr)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(recipe.cycles[0].peak_lr / 100, rel=0.1)


def test_weights_are_stored_in_bfloat16_and_nothing_else_is_lost(tokenizer, tmp_path):
    model = train_model(TINY, tokenizer, tmp_path / "c.safetensors")
    expected = weights_of(model).to(torch.bfloat16)
    save_model(model, tokenizer, tmp_path / "model")
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert stored.dtype == torch.bfloat16
    assert torch.equal(weights_of(stored), expected)


def test_every_cycle_has_its_own_peak_and_weights():
    recipe = dataclasses.replace(TINY, cycles=(Cycle(200), Cycle(100, 1e-3, number_weight=4.0)))
    rates = rates_of(recipe)
    assert max(rates[:200]) == pytest.approx(1.5e-3)
    assert rates[199] == pytest.approx(1.5e-5, rel=0.1)
    assert max(rates[200:]) == pytest.approx(1e-3)
    assert rates[200] < 0.3e-3
    before, numeric = torch.tensor([5, 7, 9]), torch.tensor([7, 9])
    assert position_weights(recipe, 199, before, numeric).tolist() == [1, 1, 1]
    assert position_weights(recipe, 200, before, numeric).tolist() == [1, 4, 4]
