"""``python -m benchmarks.block_verification``."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.block_verification import app, expected_block, expected_token
from hf_lossy_assist.acceptors import Lossless
from hf_lossy_assist.acceptors.block import BlockLossless
from hf_lossy_assist.core.messages import Verification
from tests.acceptors.exact import Tables, outcome


def test_means_are_those_of_the_exact_laws():
    tables = Tables.random(3, 3, np.random.default_rng(0))
    drafts = tables.drafts()
    p, q = (torch.tensor(np.stack([tables.along(x, draft) for draft in drafts])) for x in (tables.p, tables.q))
    v = Verification(torch.tensor(drafts), p.log().float(), q.log().float(), True)
    weights = v.q_x.prod(-1)
    token, block = expected_token(v), expected_block(v, BlockLossless.of(v).quantities(v)["h"])
    assert (weights * token).sum().item() == pytest.approx(outcome(Lossless("token"), "token", tables).kept, abs=1e-5)
    assert (weights * block).sum().item() == pytest.approx(outcome(Lossless("block"), "block", tables).kept, abs=1e-5)


def test_the_command_compares_both(tmp_path):
    out = tmp_path / "rows.jsonl"
    options = ["--prompts", "3", "--gammas", "2,6", "--temperatures", "1.3", "--max-new-tokens", "30"]
    result = CliRunner().invoke(app, [*options, "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()][1:]
    assert [(row["gamma"], row["texts"]) for row in rows] == [(2, 3), (6, 3)]
    assert all(0 < row["token"] <= row["gamma"] and row["low"] <= row["gain"] <= row["high"] for row in rows)
    assert "block" in result.stdout
