"""``lossy-assist train eagle3`` and ``train assistant``."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from typer.testing import CliRunner

import hf_lossy_assist
from hf_lossy_assist import Eagle3
from hf_lossy_assist.cli import app
from hf_lossy_assist.training.drafts.draft_trainer import DraftTrainer
from hf_lossy_assist.training.drafts.texts import TextStore
from tests.training.drafts.fixtures import write_model

SMALL = (
    "--tokens", "400", "--rows", "8", "--max-new-tokens", "20", "--temperature", "1.5", "--batch-tokens", "128",
    "--warmup", "2", "--learning-rate", "0.01", "--float32", "--device", "cpu",
)  # fmt: skip
KINDS = {"eagle3": ("--vocabulary", "40"), "assistant": ("--hidden", "16", "--layers", "1")}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["train", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_is_trained_from_the_target_s_own_prompts_and_drafts_for_it(tmp_path, monkeypatch, kind):
    model, out = write_model(tmp_path / "target"), tmp_path / "draft"
    command = (kind, "--model", str(model), "--out", str(out), *SMALL, *KINDS[kind], "--license", "mit")
    monkeypatch.setattr(sys, "argv", ["lossy-assist", "train", *command])
    result = run(*command, "--steps", "12")
    assert result.exit_code == 0, result.output
    assert "{'loss': " in result.output
    assert "'eval_kept': " in result.output
    card = (out / "README.md").read_text()
    for piece in (
        "license: mit",
        "| steps | 12, which are ",
        "written by the target itself",
        f"train {kind} --model target",
    ):
        assert piece in card
    assert str(tmp_path) not in card
    target = AutoModelForCausalLM.from_pretrained(model).eval()
    draft = (Eagle3 if kind == "eagle3" else AutoModelForCausalLM).from_pretrained(out)
    assert draft.dtype == torch.bfloat16
    if kind == "assistant":
        assert AutoTokenizer.from_pretrained(out).get_vocab() == AutoTokenizer.from_pretrained(model).get_vocab()
    ids = torch.tensor([[3, 9, 17, 2, 4]])
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = target.generate(ids, **settings)
    hf_lossy_assist.enable()
    assert torch.equal(target.generate(ids, **settings, assistant_model=draft.float(), lossy_mode="lossless"), plain)

    again = run(*command, "--steps", "14")
    assert again.exit_code == 0, again.output
    assert "continuing from checkpoint-12" in again.output
    assert "| steps | 14, which are " in (out / "README.md").read_text()


def test_prompts_of_a_file_and_texts_that_two_drafts_share(tmp_path):
    model, prompts = write_model(tmp_path / "target"), tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "w{i} w{i + 1}"}}\n' for i in range(10, 50)))
    shared = ("--model", str(model), "--texts", str(tmp_path / "texts"), "--prompts", str(prompts), *SMALL)
    assert run("eagle3", "--out", str(tmp_path / "a"), *shared, "--texts-only").exit_code == 0
    assert not (tmp_path / "a" / "model.safetensors").exists()
    written = (tmp_path / "texts" / "texts-000000.safetensors").stat().st_mtime_ns
    result = run("assistant", "--out", str(tmp_path / "b"), *shared, *KINDS["assistant"], "--steps", "2")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "texts" / "texts-000000.safetensors").stat().st_mtime_ns == written
    assert "from prompts.jsonl" in (tmp_path / "b" / "README.md").read_text()
    assert len({text.prompt for text in TextStore(tmp_path / "texts").texts()}) > 20
    assert not (tmp_path / "a" / "training").exists()


def test_a_terminated_run_leaves_a_checkpoint_and_goes_on(tmp_path, monkeypatch):
    model, out = write_model(tmp_path / "target"), tmp_path / "draft"
    saving = ("--checkpoint-every", "99999", "--steps", "100000")
    log = DraftTrainer.log

    def terminated(self, logs, *arguments):
        log(self, logs, *arguments)
        if "loss" in logs:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(DraftTrainer, "log", terminated)
    result = run("eagle3", "--model", str(model), "--out", str(out), *SMALL, *KINDS["eagle3"], *saving)
    assert result.exit_code == 0, result.output
    [checkpoint] = (out / "training").glob("checkpoint-*")
    assert f"stopped after step {checkpoint.name[11:]}; the same command goes on" in result.output
    assert not (out / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "`--model` has to be given, or `--pair arithmetic` instead"),
        (("--model", "M", "--pair", "arithmetic"), "`--pair` 'arithmetic' brings its own models; leave out `--model`"),
        (("--model", "M", "--prompts", "a", "--task", "b"), "can't both be given"),
        (
            ("--model", "M", "--prompts", "nowhere.txt"),
            "`--prompts` has to be a text file with one prompt per line, but is",
        ),
        (("--model", "UNTEMPLATED"), "has to have a chat template"),
        (("--model", "UNTOKENIZED"), "tokenizer"),
    ],
)
def test_what_can_t_work_is_said_before_any_forward(tmp_path, monkeypatch, arguments, said):
    folders = {
        "M": write_model(tmp_path / "M"),
        "UNTEMPLATED": write_model(tmp_path / "UNTEMPLATED", template=None),
        "UNTOKENIZED": write_model(tmp_path / "UNTOKENIZED"),
    }
    for path in folders["UNTOKENIZED"].glob("tokenizer*"):
        path.unlink()
    monkeypatch.setattr(PreTrainedModel, "__call__", lambda *a, **k: pytest.fail("a forward"))
    given = [str(folders.get(x, x)) for x in arguments]
    result = run("eagle3", "--out", str(tmp_path / "out"), *given, *SMALL)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith("error: ")


def test_a_folder_of_another_run_is_refused(tmp_path):
    model, out = write_model(tmp_path / "target"), tmp_path / "draft"
    command = ("eagle3", "--model", str(model), "--out", str(out), *SMALL, *KINDS["eagle3"], "--steps", "1")
    assert run(*command).exit_code == 0
    for change, said in (
        (("--seed", "1"), "`seed` was 0 and is 1"),
        (("--unrolled", "2"), "`--unrolled` was 3 and is 2"),
    ):
        result = run(*command, *change)
        assert result.exit_code == 2
        assert said in result.stderr
