"""``python -m benchmarks.trade_off``."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks import trade_off as command
from benchmarks.static_lists import MismatchRates
from benchmarks.trade_off import LISTS, SWEEPS, StaticList, Sweep, chosen, static_lists
from hf_lossy_assist import JudgeHead, pairs
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.heads import JudgeConfig, ModelIdentity


def test_the_command_refuses_an_unknown_sweep_and_a_missing_head(tmp_path):
    def error(*arguments):
        result = CliRunner().invoke(command.app, [*arguments, "--pair", "arithmetic", "--limit", "1"])
        assert result.exit_code == 2
        return result.output

    assert "did you mean 'judge'" in error("juge")
    assert "nowhere" in error("judge", "--head", f"judge={tmp_path / 'nowhere'}")
    assert "'no such'" in error("judge", "--families", "judge,no such")


def test_families_are_chosen_by_name():
    families = {name: [DecodingMode(name)] for name in ("lossless", "judge", "dropmatch")}
    assert chosen(families, None) == families
    assert list(chosen(families, "dropmatch")) == ["lossless", "dropmatch"]


def test_settings_of_families_are_compared(bundled, tmp_path, monkeypatch):
    pair = pairs.load("arithmetic")
    identities = {"target": ModelIdentity.of(pair.target), "draft": ModelIdentity.of(pair.draft)}
    config = JudgeConfig(**identities, task="arithmetic", threshold=0.5)
    JudgeHead(config, torch.zeros(config.width), -1.0).save_pretrained(tmp_path / "lenient")

    def families(lists, thresholds):
        known = lists["maths"].settings
        narrow = {"listed": known, "topk": {"k": 2}}
        return {
            "lossless": [DecodingMode("lossless", "lossless")],
            "maths": [DecodingMode("maths", "listed", known)],
            "narrow": [DecodingMode("narrow K=2", {"all_of": ["listed", "topk"]}, narrow)],
            "judge": [DecodingMode(f"judge τ={t}", "judge", {"threshold": t}) for t in thresholds],
            "dropmatch": [DecodingMode("dropmatch", "dropmatch")],
        }

    monkeypatch.setitem(command.SWEEPS, "judge", Sweep(families, (0.1, 0.9)))
    arguments = ["judge", "--pair", "arithmetic", "--head", f"judge={tmp_path / 'lenient'}", "--limit", "2"]
    arguments += ["--batch-size", "2", "--gamma", "8", "--thresholds", "0.5", "--families", "maths,narrow,judge"]
    arguments += ["--modes", "topk@4"]
    for _ in range(2):  # the second time nothing is left to do
        result = CliRunner().invoke(command.app, [*arguments, "--out", str(tmp_path)], env={"COLUMNS": "160"})
        assert result.exit_code == 0, result.output
        summary = json.loads((tmp_path / "trade-off-judge" / "summary.json").read_text())
        assert list(summary) == ["lossless", "maths", "narrow K=2", "judge τ=0.5", "topk@4"]
        assert all(entry["n"] == 2 for entry in summary.values())
        # Everything is kept, in rounds of eight drafted tokens and one of the target's.
        judge = summary["judge τ=0.5"]
        assert judge["tokens_per_round"] == pytest.approx(judge["mean_accepted"] + 1, abs=0.3)
        assert summary["narrow K=2"]["mean_accepted"] <= summary["maths"]["mean_accepted"]
    assert "judge τ=0.5" in result.stdout
    assert (tmp_path / "trade-off-judge.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "trade-off-judge" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 10
    assert "listed" not in REGISTRY


def test_all_settings_are_drawn_alike_and_in_this_process(tmp_path):
    arguments = ["sprinter", "--pair", "arithmetic", "--limit", "1", "--thresholds", "0.5", "--modes", "topk@4"]
    arguments += ["--sample", "--temperature", "0.7", "--max-new-tokens", "8"]
    result = CliRunner().invoke(command.app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    modes = json.loads((tmp_path / "trade-off-sprinter" / "manifest.json").read_text())["modes"]
    assert {label: mode["temperature"] for label, mode in modes.items()} == dict.fromkeys(
        ("lossless", "sprinter 0.5", "topk@4"), 0.7
    )
    refused = CliRunner().invoke(command.app, [*arguments, "--engine", "vllm"])
    assert refused.exit_code == 2
    assert "`--engine` has to be 'hf'" in refused.stderr


def test_sweeps_hold_what_is_compared():
    sweep = SWEEPS["judge"]
    families = sweep.families({"maths": StaticList("maths", "listed")}, sweep.thresholds)
    assert list(families) == [
        "lossless",
        "judge",
        "judge + dropmatch",
        "dropmatch",
        "top-K",
        "maths",
        "maths and top-K",
    ]
    assert len(families["judge"]) >= 6
    assert len(SWEEPS["sprinter"].thresholds) >= 5


def test_lists_are_a_task_s_own_and_those_of_mined_labels(monkeypatch):
    tokenizer = pairs.load("arithmetic").tokenizer
    rates = MismatchRates.of(np.array([3, 3, 3]), np.array([4, 4, 5]), np.array([0.0, 0.0, 1.0]), len(tokenizer))
    monkeypatch.setattr(MismatchRates, "mined", lambda folder, size: rates)
    lists = static_lists(tokenizer, LISTS["code"], "mined")
    assert list(static_lists(tokenizer, LISTS["code"])) == ["maths", "python"]
    assert {entry.family for entry in lists.values()} == {"maths", "python", "mined tokens", "mined pairs"}
    assert lists["mined pairs 0.35"].settings == {"free": ((3, 4),)}
    families = SWEEPS["judge"].families(lists, (0.5,))
    assert len(families["mined pairs"]) == len(families["mined tokens"]) >= 4
    assert "python and top-K" in families
    assert "maths and top-K" not in families
    assert "mined pairs and top-K" not in families
