"""Tokens that match after a mismatch, read in branches, against one text after the other."""

from __future__ import annotations

import pytest
import torch

from benchmarks import fly_windows
from benchmarks.fly_windows import followed
from benchmarks.rule_curves import read_rows, write_rows
from benchmarks.tests.running import run
from hf_lossy_assist import pairs
from hf_lossy_assist.cli import app
from hf_lossy_assist.training.label_folder import load_mined


@pytest.fixture(scope="module")
def pair():
    return pairs.load()


def _one_by_one(pair, prefix: list[int], most: int) -> int:
    ids, count = torch.tensor([prefix]), 0
    for _ in range(most):
        token = pair.draft(ids).logits[0, -1].argmax()
        if token != pair.target(ids).logits[0, -1].argmax():
            break
        ids, count = torch.cat([ids, token.view(1, 1)], dim=1), count + 1
    return count


@torch.inference_mode()
def test_branches_agree_with_texts_read_one_by_one(pair):
    texts = [pair.tokenizer(one.prompt)["input_ids"] for one in pair.task.examples("test", 6)]
    draw, seen = torch.Generator().manual_seed(0), set()
    for text in texts:
        starts = sorted(torch.randperm(len(text) - 2, generator=draw)[:8].add(1).tolist())
        x = torch.randint(pair.target.config.vocab_size, (8,), generator=draw).tolist()
        expected = [_one_by_one(pair, [*text[:at], token], 4) for at, token in zip(starts, x, strict=True)]
        assert followed(pair.target, pair.draft, text, starts, x, 4) == expected
        seen |= {*expected}
    assert len(seen) > 2  # some end early, and some at the window


def test_rows_get_their_counts(tmp_path, pair):
    folder, rows = tmp_path / "labels", tmp_path / "rows.jsonl.gz"
    options = ("--pair", "arithmetic", "--set", "threads=1")
    run(app, "mine", *options, "--labels", "judge", "--limit", 6, "--out", folder)
    mined = load_mined(folder)
    texts = {text["prompt_id"]: [*text["prompt_tokens"], *text["last_response"]] for text in mined.prompts}
    write_rows(rows, ({"row": i} for i in range(len(mined.tokens))))
    run(fly_windows.app, folder, rows, "--pair", "arithmetic", "--threads", 1)
    found = read_rows(rows)
    assert [row["row"] for row in found] == [*range(len(mined.tokens))]
    lengths = {text["prompt_id"]: len(text["prompt_tokens"]) for text in mined.prompts}
    with torch.inference_mode():
        for row, label in zip(found, mined.tokens, strict=True):
            before = texts[label["prompt_id"]][: lengths[label["prompt_id"]] + label["index"]]
            assert row["followed"] == _one_by_one(pair, [*before, label["draft_token"]], 5)
