"""How often heads agree, against heads that are known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import dropped_heads, kept_answers
from benchmarks.dropped_heads import Said, ask, table
from benchmarks.tests.running import run
from hf_lossy_assist import pairs
from hf_lossy_assist.acceptors import DropMatch
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation.evaluate import evaluate


def test_criteria_are_those_of_the_rule():
    """On the same dropped heads, a token is kept by `dropmatch` where either criterion keeps it."""
    draw = torch.Generator().manual_seed(0)
    head, states = nn.Linear(16, 10, bias=False), torch.randn(300, 16, generator=draw)
    nn.init.normal_(head.weight, generator=draw)
    with torch.inference_mode():
        q = (head(states) + torch.randn(300, 10, generator=draw)).softmax(-1)
        said = ask(head, states, q, 0.3, 5, torch.Generator().manual_seed(1))
        mask = (torch.rand((300, 5, 16), generator=torch.Generator().manual_seed(1)) >= 0.3) / 0.7
        dropped = head(states[:, None] * mask)
        v = Verification(
            q.argmax(-1)[:, None], head(states)[:, None].expand(-1, 2, -1), draft_logits=q.log()[:, None],
            dropped_logits=dropped[:, :, None], centroid_logits=dropped.mean(1)[:, None],
        )  # fmt: skip
        kept = DropMatch(dropout=0.3, candidates=None).keep(v)[:, 0]
    assert torch.equal(kept, said.by_divergence | said.by_majority)
    assert (said.by_divergence & ~said.by_majority).sum() > 0
    assert (said.by_majority & ~said.by_divergence).sum() > 0
    votes = dropped.argmax(-1)
    assert said.size.tolist() == [max(row.count(x) for x in row) for row in votes.tolist()]


def test_shares_are_counted():
    both, alone = [True, False, False], [True, True, False]
    one = Said(*map(torch.tensor, ([5, 5, 3], [0.9, 0.7, 0.4], both, alone, [0.1, 0.2, 0.3])))
    two = Said(*map(torch.tensor, ([5], [0.5], [False], [True], [0.4])))
    lines = table([one, two], 5).splitlines()
    cells = {line.split("|")[1].strip(): [x.strip() for x in line.split("|")[2:4]] for line in lines if line}
    assert cells["5"][0].startswith("75.00 (")
    assert float(cells["5"][1]) == pytest.approx(0.7)
    assert cells["3"][1] == "0.400"
    assert cells["1"] == ["0.00 (0.00 … 0.00)", ""]
    assert cells["kept as the majority's alone"] == ["50.00", "0.3000"]
    assert cells["kept by both criteria"] == ["25.00", "0.1000"]
    assert cells["refused"] == ["25.00", "0.3000"]


def test_the_command_reads_the_answers_of_an_evaluation(tmp_path):
    pair = pairs.load("arithmetic")
    answers = tmp_path / "answers"
    evaluate(
        pair.target, tokenizer=pair.tokenizer, task=pair.task, modes="plain", limit=2, out=answers, max_new_tokens=12,
    )  # fmt: skip
    output = run(dropped_heads.app, answers, "--pair", "arithmetic").output
    assert "2 answers, 2" in output
    assert "| 5 |" in output
    run(kept_answers.app, answers, tmp_path / "kept")
    assert "has no texts" in run(dropped_heads.app, tmp_path / "kept", "--pair", "arithmetic", status=2).output
