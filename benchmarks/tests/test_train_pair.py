"""``python -m benchmarks.train_pair train-pair`` and ``evaluate-pair``."""

from __future__ import annotations

import functools
import json

import pytest
from typer.testing import CliRunner

from benchmarks import train_pair
from benchmarks.bundled_pair.recipe import Cycle
from benchmarks.train_pair import app
from hf_lossy_assist import pairs
from hf_lossy_assist.tasks import Arithmetic
from tests.tiny_pair import TINY


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 4)
    monkeypatch.setattr(train_pair, "build_tokenizer", tokenizer)


tokenizer = functools.cache(train_pair.build_tokenizer)  # whose training takes seconds, and comes to the same


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_pair_is_trained_measured_and_described(tmp_path, monkeypatch):
    monkeypatch.setattr(train_pair, "_QUICK", {**train_pair._QUICK, "batch": 1, "cycles": (Cycle(3), Cycle(2))})
    printed = run("train-pair", "--quick", "--out", str(tmp_path), "--threads", "1")
    for role in pairs.ROLES:
        assert f"{role}: 0 of 20 answers right" in printed
        figures = json.loads((tmp_path / role / "figures.json").read_text())
        assert sum(cycle["steps"] for cycle in figures["recipe"]["cycles"]) == 5
        assert "(0 of 20 test problems" in (tmp_path / role / "README.md").read_text()
    pair = pairs.load("arithmetic", folder=tmp_path)
    assert pair.target.config.num_hidden_layers == 1

    again = run("train-pair", "--quick", "--out", str(tmp_path), "--role", "draft")
    assert "target" not in again


def test_an_interrupted_run_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(train_pair, "_QUICK", vars(TINY) | {"cycles": (Cycle(100),)})
    whole = run("train-pair", "--quick", "--out", str(tmp_path), "--role", "draft")
    assert "continuing" not in whole
    weights = (tmp_path / "draft" / "model.safetensors").read_bytes()
    resumed = run("train-pair", "--quick", "--out", str(tmp_path), "--role", "draft")
    assert "draft: continuing after step 100 of 100" in resumed
    assert (tmp_path / "draft" / "model.safetensors").read_bytes() == weights


def test_measuring_writes_only_on_request(tiny_pair_folder):
    figures = tiny_pair_folder / "draft" / "figures.json"
    command = ("evaluate-pair", "--folder", str(tiny_pair_folder), "--problems", "2", "--role", "draft")
    assert "draft: 0 of 2 answers right (0.0 %)" in run(*command)
    assert not figures.exists()
    run(*command, "--write")
    assert json.loads(figures.read_text())["problems"] == 2


def test_a_folder_without_weights_is_an_error(tmp_path):
    result = CliRunner().invoke(app, ["evaluate-pair", "--folder", str(tmp_path), "--problems", "2"])
    assert isinstance(result.exception, OSError)
