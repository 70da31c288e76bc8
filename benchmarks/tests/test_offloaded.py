"""Modes whose target is read from disk."""

from __future__ import annotations

import json

import hf_lossy_assist
from benchmarks import offloaded
from benchmarks.tests.running import run
from hf_lossy_assist import pairs


def test_a_target_on_disk_says_what_it_says_in_memory(tmp_path):
    options = "--pair arithmetic --task arithmetic --max-new-tokens 8 --modes plain,lossless@2 --limit 2".split()
    run(offloaded.app, *options, "--weights", tmp_path / "weights", "--out", tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    pair = pairs.load("arithmetic")
    wanted = hf_lossy_assist.evaluate(
        pair.target, tokenizer=pair.tokenizer, task=pair.task, modes="plain", limit=2, max_new_tokens=8
    )
    texts = {answer.id: answer.text for answer in wanted.answers}
    assert [line["text"] for line in lines] == [texts[line["id"]] for line in lines]
    assert len(lines) == 4
    assert sum(path.stat().st_size for path in (tmp_path / "weights").iterdir()) > 10 * 2**20
