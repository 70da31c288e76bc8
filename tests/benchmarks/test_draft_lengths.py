"""``python -m benchmarks.draft_lengths``."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from benchmarks.draft_lengths import app, measure
from hf_lossy_assist import pairs
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.evaluation.requests import batches_of


def test_the_command_compares_with_the_automatic_window(tmp_path):
    out = tmp_path / "rows.jsonl"
    result = CliRunner().invoke(app, ["--gammas", "2,6", "--problems", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("gamma") for row in rows] == [None, 2, 6, "auto"]
    assert "× best" in result.stdout


def test_calls_are_those_of_the_rounds():
    pair = pairs.load("arithmetic")
    prompts = batches_of([pair.task.encode(e, pair.tokenizer) for e in pair.task.examples("test", 2)])
    one, four = measure(Models(pair.target, pair.draft), [1, 4], prompts, 160)
    assert one.tokens == four.tokens
    assert one.target_calls > four.target_calls
    # A text of n tokens takes as many rounds as the target has calls, the first of which reads the prompt; the draft
    # reads it in its first call too.
    assert one.target_calls < one.tokens < 2 * (one.target_calls + 2) + 2
    assert 0.5 * one.draft_calls <= one.target_calls <= one.draft_calls + 2
    assert one.seconds > 0 < four.seconds
