"""The study of prepacked targets and rounded drafts: their gain."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.cheap_rounds import app, ways

_KERNELS = torch.ops.mkldnn._is_mkldnn_bf16_supported()
_BFLOAT16 = pytest.param("bfloat16", marks=pytest.mark.skipif(not _KERNELS, reason="this CPU has no bfloat16 kernels"))


@pytest.mark.parametrize("dtype", ["float32", _BFLOAT16])
def test_every_way_answers_every_prompt_and_goes_on_where_it_ended(tmp_path, dtype):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("Question: Tom has 3 apples and buys 4. How many has he? Answer:\nQuestion: 2 + 2? Answer:\n")
    arguments = ["--pair", "arithmetic", "--prompt-file", str(prompts), "--max-new-tokens", "6", "--out", str(out)]
    arguments += ["--dtype", dtype]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}, catch_exceptions=False)
    assert "arithmetic, 2 prompts of 6 tokens" in result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted((row["way"], row["prompt"]) for row in rows) == sorted(
        (w.label, i) for w in ways(dtype) for i in (0, 1)
    )
    assert all(row["seconds"] > 0 and 1 <= row["tokens"] <= 6 for row in rows)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert again[:-1] == rows[:-1]
    assert len(again) == len(rows)
