"""``lossy-assist trade-off``."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from hf_lossy_assist import JudgeHead, LossyValueError, pairs
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.cli import app
from hf_lossy_assist.cli import trade_off as command
from hf_lossy_assist.cli.trade_off import SWEEPS, MathsTokens, maths_tokens, trade_off
from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.heads import JudgeConfig, ModelIdentity
from hf_lossy_assist.messages import Verification


def test_the_command_refuses_an_unknown_sweep_and_a_missing_head(tmp_path):
    with pytest.raises(LossyValueError, match="did you mean 'judge'"):
        trade_off("juge")
    with pytest.raises(LossyValueError, match="nowhere"):
        trade_off("judge", head=str(tmp_path / "nowhere"), problems=1)


def test_settings_of_families_are_compared(bundled, tmp_path, monkeypatch):
    pair = pairs.load("arithmetic")
    identities = {"target": ModelIdentity.of(pair.target), "draft": ModelIdentity.of(pair.draft)}
    config = JudgeConfig(**identities, task="arithmetic", threshold=0.5)
    JudgeHead(config, torch.zeros(config.width), -1.0).save_pretrained(tmp_path / "lenient")

    def families(maths):
        narrow = {"maths": {"important": maths}, "topk": {"k": 2}}
        return {
            "lossless": [DecodingMode("lossless", "lossless")],
            "maths": [DecodingMode("maths", "maths", {"important": maths})],
            "narrow": [DecodingMode("narrow K=2", {"all_of": ["maths", "topk"]}, narrow)],
            "judge": [DecodingMode("judge τ=0.5", "judge", {"threshold": 0.5})],
        }

    monkeypatch.setitem(command.SWEEPS, "judge", families)
    arguments = ["--head", str(tmp_path / "lenient"), "--problems", "2", "--batch-size", "2", "--gamma", "8"]
    for _ in range(2):  # the second time nothing is left to do
        result = CliRunner().invoke(app, ["trade-off", *arguments, "--out", str(tmp_path)], env={"COLUMNS": "160"})
        assert result.exit_code == 0, result.output
        summary = json.loads((tmp_path / "trade-off-judge" / "summary.json").read_text())
        assert list(summary) == ["lossless", "maths", "narrow K=2", "judge τ=0.5"]
        assert all(entry["n"] == 2 for entry in summary.values())
        # Everything is kept, in rounds of eight drafted tokens and one of the target's.
        judge = summary["judge τ=0.5"]
        assert judge["tokens_per_round"] == pytest.approx(judge["mean_accepted"] + 1, abs=0.3)
        assert summary["narrow K=2"]["mean_accepted"] <= summary["maths"]["mean_accepted"]
    assert "judge τ=0.5" in result.stdout
    assert (tmp_path / "trade-off-judge.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "trade-off-judge" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 8
    assert "maths" not in REGISTRY


def test_sweeps_hold_what_is_compared():
    families = SWEEPS["judge"](())
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
    assert len(SWEEPS["sprinter"](())["sprinter"]) >= 5


def test_maths_tokens_of_a_tokenizer():
    pair = pairs.load("arithmetic")
    ids = maths_tokens(pair.tokenizer)
    words = {pair.tokenizer.decode([i]).strip() for i in ids}
    assert set("0123456789+-=") <= words
    assert "apples" not in words
    assert pair.tokenizer.eos_token_id in ids


def test_a_mismatch_matters_where_either_token_is_of_mathematics():
    logits = torch.eye(6)[[1, 1, 4, 4, 0]][None]
    v = Verification(tokens=torch.tensor([[1, 2, 5, 1]]), logits=logits)
    kept = MathsTokens(important=(1, 3)).keep(v)
    assert kept.tolist() == [[True, False, True, False]]
