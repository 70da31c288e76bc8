"""Answers without texts become a configuration of the data set, which prints as the evaluation did."""

from __future__ import annotations

import json
import shutil

import datasets

import hf_lossy_assist
from benchmarks import headroom, kept_answers, pages, tables
from benchmarks.tests.running import run
from hf_lossy_assist import pairs


def test_a_folder_of_answers_becomes_a_configuration(tmp_path, monkeypatch):
    pair, data = pairs.load("arithmetic"), tmp_path / "data-set"
    shutil.copytree(tables.DATA, data)
    monkeypatch.setattr(tables, "DATA", data)
    result = hf_lossy_assist.evaluate(
        pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task, modes="plain,lossless,topk", limit=3,
        max_new_tokens=99, out=tmp_path / "own", batch_size=3,
    )  # fmt: skip
    about = ("--question", "What is it?", "--machine", "a CPU", "--pair", "arithmetic")
    for _ in range(2):  # the second time it is replaced
        run(kept_answers.app, tmp_path / "own", "mine", *about)
    kept = datasets.load_dataset(str(data), "mine", split="train", cache_dir=str(tmp_path / "cache"))
    assert kept["mode"] == [mode for mode in ("plain", "lossless", "topk") for _ in range(3)]
    assert kept["tokens"] == [
        answer.tokens for answer in sorted(result.answers, key=lambda x: kept["mode"].index(x.mode))
    ]
    assert all(text.startswith("crc32:") for text in kept["text"])
    for mode, tokens, stops, count in zip(*(kept[x] for x in ("mode", "tokens", "refused", "rounds")), strict=True):
        assert mode == "plain" or headroom.rounds(tokens, stops, 5) == count
    (study,) = (x for x in tables.rows("studies") if x["configuration"] == "mine")
    assert (study["question"], study["machine"], study["n"]) == ("What is it?", "a CPU", 3)
    assert str(tmp_path) not in json.dumps(study)
    assert "### mine\n\nWhat is it? 3 problems" in (data / "README.md").read_text(encoding="utf-8")
    table = pages.quality("mine")
    assert f"| `topk` | 3 | {100 * result.modes['topk'].score:.1f} |" in table
    tables.rows.cache_clear()
