"""The study of cheap drafts: their cost, and how many tokens are kept."""

from __future__ import annotations

import json
import math
from itertools import combinations

import pytest
import scipy.stats
import torch

from benchmarks.cheap_drafts import agreement, app, shares
from benchmarks.tests.running import run
from hf_lossy_assist import pairs, trim_draft_vocabulary


@torch.no_grad()
def test_agreement_is_that_of_single_positions():
    pair = pairs.load("arithmetic")
    ids = pair.tokenizer(
        "Question: Tom has 3 apples and buys 4. How many has he? Answer:", return_tensors="pt"
    ).input_ids
    drafts = {"itself": pair.target, "draft": pair.draft, "few": trim_draft_vocabulary(pair.draft, range(40))}
    positions, found = agreement(pair.target, drafts, ids, ids.shape[1] - 6)
    assert positions == 6
    assert found["itself"] == (6, pytest.approx(6, abs=1e-4))
    same = overlap = 0.0
    for end in range(ids.shape[1] - 6, ids.shape[1]):
        p, q = (model(ids[:, :end]).logits[0, -1].softmax(-1) for model in (pair.target, pair.draft))
        same += float(p.argmax() == q.argmax())
        overlap += float(torch.minimum(p, q).sum())
    assert found["draft"] == (same, pytest.approx(overlap, rel=1e-4))
    assert found["few"][1] != pytest.approx(overlap, rel=1e-4)


def test_every_draft_has_its_row(tmp_path):
    prompts, corpus = tmp_path / "prompts.txt", tmp_path / "corpus.jsonl"
    prompts.write_text("Question: Tom has 3 apples and buys 4. How many has he? Answer:\nQuestion: 2 + 2? Answer:\n")
    corpus.write_text(json.dumps({"text": "Tom has 3 apples."}) + "\n")
    arguments = ("--pair", "arithmetic", "--data", prompts, "--corpus", corpus, "--counts", "16,64")
    output = run(app, *arguments, "--max-new-tokens", "6", "--out", tmp_path / "rows.jsonl").output
    for label in ("as loaded", "int8", "int4", "int8, 16 tokens", "int8, 64 tokens"):
        assert label in output
    assert "tokens of the target's own 2 answers" in output
    first, *answers = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    same, overlap = (sum(answer["drafts"]["int8"][i] for answer in answers) for i in (0, 1))
    tokens = sum(answer["tokens"] for answer in answers)
    for share in (same, overlap):
        assert f"{100 * share / tokens:.1f} (" in output
    assert f"{1e3 * first['ms']['int8']:.1f}" in output
    again = run(app, *arguments, "--out", tmp_path / "rows.jsonl").output
    assert again.strip()
    assert again.strip() in output


def test_differences_are_those_on_the_same_answers():
    overlaps = [(8.0, 6.0, 10), (1.0, 0.0, 5), (4.0, 4.0, 5)]
    found = [(n, {"as loaded": (0.0, p), "int8": (0.0, q)}) for p, q, n in overlaps]
    likeliest, same, overlap, difference = shares(found, "int8")
    assert (likeliest, same) == ("0.0 (0.0 … 0.0)", "+0.0 (+0.0 … +0.0)")
    assert overlap.startswith("50.0 (")
    left_out = [100 * -sum(q - p for p, q, _ in rest) / sum(n for *_, n in rest) for rest in combinations(overlaps, 2)]
    error = math.sqrt(2 / 3 * sum((x - sum(left_out) / 3) ** 2 for x in left_out))
    half = scipy.stats.t.ppf(0.975, 2) * error
    assert difference == f"{-15:+.1f} ({-15 - half:+.1f} … {-15 + half:+.1f})"
    assert shares(found, "as loaded")[1::2] == ["", ""]
