"""The loop: kills change nothing, processes share a step, and drafts get better."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.training.drafts.draft_batches import DataPosition
from hf_lossy_assist.training.drafts.draft_training import CHECKPOINT, LOG, rounds_of
from tests.models import tiny
from tests.training.drafts.fixtures import TRAINING, data, training

RUN = """
import os, signal, sys
from pathlib import Path
from hf_lossy_assist.training.drafts.text_store import TextStore
from tests.training.drafts.fixtures import training
store, folder, end = TextStore(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
run = training(store, folder, "eagle3")
run.resume()
def kill(progress):
    if progress.step == end:
        os.kill(os.getpid(), signal.SIGKILL)
run.train(checkpoint_seconds=0, held_out_texts=4, on_step=kill)
"""


@pytest.mark.parametrize("kind", ["eagle3", "assistant"])
def test_a_trained_draft_beats_an_untrained_one_on_prompts_that_it_has_not_seen(texts, tmp_path, kind):
    run = training(texts, tmp_path, kind, replace(TRAINING, steps=60))
    held_out = [(batch, run.objective.greedy(batch)) for batch in run.data.held_out(100)]
    before = run.measure(held_out)
    after = run.train(held_out_texts=100)
    assert after.loss < before.loss
    if kind == "eagle3":  # the random target gives an assistant nothing to go by but its law
        assert after.kept > before.kept
    assert after.texts == before.texts > 2
    rows = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert rows[-1]["step"] == 60
    assert rows[-1]["kept"] == after.kept


def test_a_run_that_is_killed_ends_bit_alike(texts, tmp_path):
    whole = training(texts, tmp_path / "whole")
    whole.train(checkpoint_seconds=0, held_out_texts=4)
    for end in (5, 17, 0):
        command = [sys.executable, "-c", RUN, str(texts.folder), str(tmp_path / "killed"), str(end)]
        code = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode
        assert code == (-signal.SIGKILL if end else 0)
    expected, found = (load_file(tmp_path / name / CHECKPOINT) for name in ("whole", "killed"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_two_processes_do_the_steps_of_one(texts, tmp_path):
    """Each takes half of the batches of a step; their weights stay equal."""
    command = [
        sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
        "-m", "tests.training.drafts.two_trainers", str(texts.folder), str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = [json.loads((tmp_path / f"{process}.json").read_text()) for process in (0, 1)]
    assert said[0]["weights"] == said[1]["weights"]
    assert said[0]["first"] != said[1]["first"]
    assert said[0]["seen"] == said[1]["seen"] > 0


def test_a_stop_leaves_a_checkpoint_from_which_more_steps_can_follow(texts, tmp_path):
    run = training(texts, tmp_path)
    run.train(held_out_texts=4, stopped=lambda: run.state.step == 7)
    again = training(texts, tmp_path, settings=replace(TRAINING, steps=9))
    assert again.resume()
    assert again.state.step == 7
    again.train(held_out_texts=4)
    assert again.state.step == 9


def test_a_checkpoint_of_another_run_is_refused(texts, tmp_path):
    training(texts, tmp_path, settings=replace(TRAINING, steps=1)).train(held_out_texts=4)
    other = training(texts, tmp_path, settings=replace(TRAINING, learning_rate=1.0), run={"unrolled": 4})
    with pytest.raises(LossyValueError, match=r"`learning_rate` was 0.01 and is 1.0; `unrolled` was None and is 4"):
        other.resume()


def test_batches_follow_from_their_position_and_leave_held_out_prompts_alone(texts, tmp_path):
    source = data(texts, tmp_path)
    held_out = {text.ids for text in source.held_out_texts(1000)}
    assert held_out
    first = source.batches(DataPosition())
    pairs = [next(first) for _ in range(25)]
    assert pairs[-1][1].epoch > 0
    rows = {
        tuple(ids[: int(answers.nonzero()[-1]) + 1].tolist())
        for batch, _ in pairs
        for ids, answers in zip(batch.ids, batch.answers, strict=True)
    }
    everything = {text.ids for batch in texts.batches() for text in texts.read(batch)}
    assert rows == everything - held_out
    again = source.batches(pairs[9][1])
    for (batch, position), (same, where) in zip(pairs[10:], again, strict=False):
        assert torch.equal(batch.ids, same.ids)
        assert torch.equal(batch.states, same.states)
        assert position == where


def test_too_few_texts_are_refused(texts, tmp_path):
    with pytest.raises(LossyValueError, match="too few texts"):
        next(data(texts, tmp_path, held_out_share=1.0).batches(DataPosition()))


def test_states_are_kept_within_the_budget_and_are_the_target_s(texts, tmp_path):
    target = tiny("llama")
    kept, computed = data(texts, tmp_path / "kept"), data(texts, tmp_path / "computed", budget=0)
    for source in (kept, computed, kept):
        batch, _ = next(source.batches(DataPosition()))
        with torch.no_grad():
            out = target(batch.ids, output_hidden_states=True)
        expected = torch.cat([out.hidden_states[i] for i in (0, 1)], dim=-1)
        places = batch.answers
        torch.testing.assert_close(batch.states[places][:, :64].float(), expected[places], atol=0.05, rtol=0.02)
        torch.testing.assert_close(batch.last[places].float(), out.hidden_states[-1][places], atol=0.05, rtol=0.02)
    assert list((tmp_path / "kept").iterdir())
    assert not (tmp_path / "computed").exists()


def test_rounds_are_those_of_decoding():
    matches = torch.rand(200, 4, generator=torch.Generator().manual_seed(0)) < 0.7
    at = rounds = kept = 0
    while at < 200:
        n = 0
        while n < 4 and matches[at, n]:
            n += 1
        rounds, kept, at = rounds + 1, kept + n, at + n + 1
    assert rounds_of(matches) == (rounds, kept)
