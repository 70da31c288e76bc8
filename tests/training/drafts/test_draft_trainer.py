"""Training: kills change nothing, processes share a step, and drafts get better."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from hf_lossy_assist.training.drafts.draft_data import collate
from hf_lossy_assist.training.drafts.texts import TextStore
from tests.forking import ended, fork, fork_module
from tests.tiny_models import tiny
from tests.training.drafts.fixtures import training


class Kill(TrainerCallback):
    """Kills the process at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def run_until(step: int, texts: TextStore, folder: Path) -> None:
    run = training(texts, folder, save_steps=1, eval_steps=7)
    run.add_callback(Kill(step))
    run.fit()


def losses(run) -> list[float]:
    return [row["loss"] for row in run.state.log_history if "loss" in row]


@pytest.mark.parametrize("kind", ["eagle3", "assistant"])
def test_a_trained_draft_comes_nearer_to_the_target_on_prompts_that_it_has_not_seen(texts, tmp_path, kind):
    """Nearer than the untrained one, by a good part of the way to the target's entropy, below which no loss gets."""
    run = training(texts, tmp_path, kind, steps=60)
    before, after = run.evaluate(), run.fit()
    entropies = []
    for batch in run.get_eval_dataloader():
        rows = tiny("llama").lm_head.weight.detach()
        if kind == "eagle3":
            rows = rows[run.model.head.target_ids]
        p = (batch["last"][:, :-1].float() @ rows.T).softmax(-1)[batch["answers"][:, 1:]]
        entropies.append(torch.distributions.Categorical(p).entropy().mean().item())
    lowest = sum(entropies) / len(entropies)
    assert lowest < after["eval_loss"] < before["eval_loss"] - 0.15 * (before["eval_loss"] - lowest)
    if kind == "eagle3":  # the random target gives an assistant nothing to go by but its distribution
        assert after["eval_kept"] > before["eval_kept"]
    assert after["eval_texts"] == before["eval_texts"] > 2


def test_a_run_that_is_killed_ends_bit_alike(texts, tmp_path):
    whole = training(texts, tmp_path / "whole", save_steps=1, eval_steps=7)
    whole.fit()
    # In the middle of an epoch, at its end, and never.
    epoch = len(whole.train_dataset)
    for end in (5, epoch, 99):
        status = ended(fork(run_until, end, texts, tmp_path / "killed"))
        assert status == (-signal.SIGKILL if end < 99 else 0)
        # The next checkpoint was being written.
        torn = tmp_path / "killed" / f"checkpoint-{end + 1}"
        torn.mkdir()
        shutil.copy(tmp_path / "killed" / f"checkpoint-{min(end, 30)}" / "model.safetensors", torn)
        (torn / "trainer_state.json").write_text('{"global_step": ')
    expected, found = (weights(tmp_path / name / "checkpoint-30") for name in ("whole", "killed"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_signal_leaves_a_checkpoint_from_which_the_rest_follows_bit_alike(texts, tmp_path):
    whole = training(texts, tmp_path / "whole")
    measured = whole.fit()
    handler = signal.getsignal(signal.SIGTERM)
    run = training(texts, tmp_path / "stopped")
    forward = run.model.forward

    def signalled(**inputs):
        if run.state.global_step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(**inputs)

    run.model.forward = signalled
    assert run.fit() is None
    assert run.state.global_step == 8
    assert signal.getsignal(signal.SIGTERM) == handler
    again = training(texts, tmp_path / "stopped")
    assert again.checkpoint().name == "checkpoint-8"
    resumed = again.fit()
    assert {name: resumed[name] for name in ("eval_loss", "eval_kept")} == {
        name: measured[name] for name in ("eval_loss", "eval_kept")
    }


def test_a_finished_run_takes_no_step_and_goes_further_if_asked(texts, tmp_path):
    first = training(texts, tmp_path, steps=9).fit()
    before = weights(tmp_path / "checkpoint-9")
    again = training(texts, tmp_path, steps=9)
    assert again.fit()["eval_loss"] == first["eval_loss"] == again.evaluate()["eval_loss"]
    assert again.state.global_step == 9
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in before.items())
    further = training(texts, tmp_path, steps=12)
    further.fit()
    assert [row["step"] for row in further.state.log_history if "loss" in row] == [*range(1, 13)]


def test_steps_of_several_forwards_have_the_mean_of_their_gradients(texts, tmp_path):
    run = training(texts, tmp_path, "assistant", steps=1, gradient_accumulation_steps=2, max_grad_norm=0.0)
    fresh = training(texts, tmp_path / "fresh", "assistant").model
    seen, gradients = [], {}
    compute = run.compute_loss

    def noting(model, inputs, *args, **kwargs):
        seen.append(inputs)
        return compute(model, inputs, *args, **kwargs)

    class Noting(TrainerCallback):
        def on_pre_optimizer_step(self, *args, model, **kwargs):
            gradients.update({name: parameter.grad.clone() for name, parameter in model.named_parameters()})

    run.compute_loss = noting
    run.add_callback(Noting())
    run.fit()
    assert len(seen) == 2
    (sum(fresh(**inputs) for inputs in seen) / 2).backward()
    for name, parameter in fresh.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_the_learning_rate_rises_stays_and_falls(texts, tmp_path):
    run = training(texts, tmp_path, "assistant", steps=12, warmup=4, cooldown=0.5, learning_rate=1.0)
    run.fit()
    rates = [row["learning_rate"] for row in run.state.log_history if "loss" in row]
    assert rates[:4] == sorted(rates[:4])
    assert rates[0] < rates[4] == rates[8] == 1.0
    assert 1.0 > rates[9] > rates[10] > rates[11] > 0.01


def test_bfloat16_learns_too(texts, tmp_path):
    plain, half = (training(texts, tmp_path / str(bf16), bf16=bf16) for bf16 in (False, True))
    plain.fit(), half.fit()
    assert losses(half) != losses(plain)
    assert losses(half)[-1] == pytest.approx(losses(plain)[-1], rel=0.01)
    assert {value.dtype for value in half.model.state_dict().values()} <= {torch.float32, torch.int64}


def test_two_processes_do_the_steps_of_one(texts, tmp_path):
    """Each takes half of the batches; their weights stay equal, and they measure all held-out texts together."""
    fork_module("tests.training.drafts.two_trainers", texts.folder, tmp_path, folder=tmp_path)
    said = [json.loads((tmp_path / f"{process}.json").read_text()) for process in (0, 1)]
    assert said[0]["weights"] == said[1]["weights"]
    assert not set(map(tuple, said[0]["seen"])) & set(map(tuple, said[1]["seen"]))
    alone = training(texts, tmp_path / "alone", steps=6, seed=1)
    assert said[0]["texts"] == said[1]["texts"] == alone.evaluate()["eval_texts"]
    assert said[0]["before"] == pytest.approx(alone.evaluate()["eval_kept"])


def test_what_is_measured_is_what_rounds_keep_on_average(texts, tmp_path):
    """At every token of an answer but the last a round can begin, and it keeps drafts until one is wrong."""
    run = training(texts, tmp_path, "assistant")
    measured = run.evaluate()
    began, kept = 0, [0, 0, 0]
    for item in run.eval_dataset:
        batch = collate([item])
        matches = run.model.matches(**batch, gamma=3)[0]
        places = batch["answers"][0].nonzero()[:, 0].tolist()
        for place in places[:-1]:
            began += 1
            for k in range(3):
                if not matches[place, k]:
                    break
                kept[k] += 1
    assert measured["eval_kept"] == pytest.approx(sum(kept) / began)
    assert measured["eval_accuracy_1"] == pytest.approx(kept[0] / began)
    assert measured["eval_accuracy_2"] == pytest.approx(kept[1] / max(1, kept[0]))
    assert kept[1] > 0
