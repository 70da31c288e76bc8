"""The recipe of the EAGLE-3 head: exactly resumable, and written as it is loaded."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from benchmarks import train_eagle3
from benchmarks.tests.running import run
from benchmarks.train_eagle3 import ROWS, Recipe
from hf_lossy_assist import Eagle3, pairs

SMALL = Recipe(
    layers=(0, 1), intermediate=8, key_value_heads=2, written=8, chunk=4, batch=4, pool=2, warmup=1,
    single=3, cosine=4, steps=6, unrolled=2,
)  # fmt: skip


def test_a_resumed_run_ends_with_the_same_head(tiny_pair_folder, tmp_path, monkeypatch):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    pair = dataclasses.replace(pair, task=type("Short", (type(pair.task),), {"max_new_tokens": 6})())
    straight = train_eagle3.fit(pair, SMALL, tmp_path / "straight")
    loss_of, unrolled = train_eagle3.loss_of, []

    def interrupt(head, target, states, texts, steps, decay):
        unrolled.append(steps)
        if len(unrolled) == 5:
            raise KeyboardInterrupt
        return loss_of(head, target, states, texts, steps, decay)

    monkeypatch.setattr(train_eagle3, "loss_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_eagle3.fit(pair, SMALL, tmp_path / "resumed", checkpoint_every=2)
    resumed = train_eagle3.fit(pair, SMALL, tmp_path / "resumed", checkpoint_every=2)
    assert unrolled == [1, 1, 1, 2, 2, 2, 2], "the last three steps train on two tokens, and step 5 was repeated"
    for name, weight in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight), name
    straight.check(pair.target)


def test_the_card_says_how_many_tokens_rounds_keep(pair, tmp_path):
    Eagle3.from_pretrained(pairs.hub_cards() / "arithmetic-eagle3").save_pretrained(tmp_path / "head")
    answers = tmp_path / "kept"
    answers.mkdir()
    lines = [
        {"mode": mode, "id": i, "score": 1.0, "rounds": 10, "accepted": accepted}
        for mode in ROWS.values()
        for i, accepted in enumerate((10, 30))
    ]
    (answers / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(train_eagle3.app, "card", "--out", str(tmp_path / "head"), "--answers", str(answers))
    card = (tmp_path / "head" / "README.md").read_text()
    assert "| `lossless`, tree | 2.00 (0.61 to 3.39) | 100.0 % |" in card
    assert "Answers to 2 problems" in card
