"""How often DropMatch over candidates decides otherwise."""

from __future__ import annotations

import json

import torch
from typer.testing import CliRunner

from benchmarks.dropmatch_candidates import SameDraws, app
from hf_lossy_assist import pairs
from tests.acceptors.dropped_heads import VOCABULARY, verification


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


def test_heads_draw_the_same_tokens_from_all_and_from_candidates():
    """With one token less than all as candidates, the rest is a token, too: only other draws could decide otherwise."""
    kept = [
        torch.cat([SameDraws(candidates=c, dropout=0.1).keep(verification(True, seed=i)) for i in range(40)])
        for c in (None, VOCABULARY - 1, 4)
    ]
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])
    assert 0.2 < kept[0].float().mean() < 0.95
