"""How often DropMatch over candidates decides otherwise."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from benchmarks.dropmatch_candidates import app
from hf_lossy_assist import pairs


def test_all_tokens_as_candidates_decide_alike_and_few_may_not(tmp_path):
    texts, out = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    size = pairs.load().target.config.vocab_size
    problem = "Question: Tom has 24 apples. Tom buys 18 more. Then Tom sells 12. How many has Tom now?\nAnswer: Tom"
    texts.write_text("".join(json.dumps({"text": problem + more}) + "\n" for more in (" has 24 + 18 = 42.", " starts")))
    arguments = ["--texts", str(texts), "--out", str(out), "--pair", "arithmetic", "--positions", "12"]
    result = CliRunner().invoke(app, [*arguments, "--candidates", f"1,{size}"], catch_exceptions=False)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 2 * 2 * 2
    assert all(row["positions"] == 12 and 0 <= row["differ"] <= 12 for row in rows)
    assert all(row["differ"] == 0 for row in rows if row["candidates"] == size)
    assert "decided otherwise" in result.output
    again = CliRunner().invoke(app, [*arguments, "--candidates", f"1,{size}"], catch_exceptions=False)
    assert out.read_text().splitlines() == [json.dumps(row) for row in rows]
    shown = [[line for line in each.output.splitlines() if line.endswith("%  ")] for each in (result, again)]
    assert shown[0] == shown[1] != []
