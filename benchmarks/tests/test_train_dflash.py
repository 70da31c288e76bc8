"""The recipe of the DFlash head: exactly resumable, and written as it is loaded."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from benchmarks import train_dflash
from benchmarks.tests.running import run
from benchmarks.train_dflash import ROWS, Recipe
from hf_lossy_assist import DFlash, pairs
from tests.dflash_heads import random_dflash
from tests.drafting.uncached import dflash_logits

SMALL = Recipe(
    layers=(0, 1), own_layers=1, intermediate=8, key_value_heads=2, block_size=4, written=8, chunk=4, batch=4, pool=2,
    anchors=3, steps=6, cosine=4, warmup=1,
)  # fmt: skip


@pytest.fixture
def small(tiny_pair_folder):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    return dataclasses.replace(pair, task=type("Short", (type(pair.task),), {"max_new_tokens": 6})())


def test_a_resumed_run_ends_with_the_same_head(small, tmp_path, monkeypatch):
    straight = train_dflash.fit(small, SMALL, tmp_path / "straight")
    loss_of, losses = train_dflash.loss_of, []

    def interrupt(*args):
        if len(losses) == 5:
            losses.append(None)
            raise KeyboardInterrupt
        losses.append(loss_of(*args))
        return losses[-1]

    monkeypatch.setattr(train_dflash, "loss_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_dflash.fit(small, SMALL, tmp_path / "resumed", checkpoint_every=2)
    resumed = train_dflash.fit(small, SMALL, tmp_path / "resumed", checkpoint_every=2)
    assert len(losses) == 8, "the fifth step was repeated"
    for name, weight in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight), name
    straight.check(small.target)


def test_the_loss_is_that_of_blocks_one_by_one(small):
    """A block at a time, with what is drafted in generation, gives the mean over all of them."""
    recipe = dataclasses.replace(SMALL, anchors=5)
    head = train_dflash.new_head(small, recipe).eval()
    texts = [(torch.tensor([1, 7, 9, 11, 5, 8, 12, 2]), 3), (torch.tensor([1, 4, 6, 8, 2]), 2)]
    states = train_dflash.LayerStates(small.target, recipe.layers)
    scales = train_dflash.scales_of(small, recipe, texts[0])
    with torch.no_grad():
        found = train_dflash.loss_of(
            head, small.target, states, scales, texts, recipe, torch.Generator().manual_seed(0)
        )
        head.fc.weight *= scales
    draws = torch.rand(2, recipe.anchors, generator=torch.Generator().manual_seed(0))
    total = weights = 0.0
    for (ids, start), own in zip(texts, draws, strict=True):
        for anchor in (start + own * (len(ids) - start - 1)).long().tolist():
            logs = dflash_logits(small.target, head, ids[: anchor + 1], recipe.block_size - 1).log_softmax(-1)
            p = small.target(ids[None]).logits[0].detach().softmax(-1)
            for i in range(min(recipe.block_size - 1, len(ids) - anchor - 1)):
                total -= recipe.decay**i * (p[anchor + i] * logs[i]).sum().item()
                weights += recipe.decay**i
    assert found.item() == pytest.approx(total / weights, rel=1e-4)


def test_the_card_says_how_many_tokens_rounds_keep(tmp_path):
    random_dflash().save_pretrained(tmp_path / "head")
    for draft, rows in ROWS.items():
        lines = [
            {"mode": mode, "id": i, "score": 1.0, "rounds": 10, "accepted": accepted}
            for mode in rows.values()
            for i, accepted in enumerate((10, 30))
        ]
        (tmp_path / "kept" / draft).mkdir(parents=True)
        (tmp_path / "kept" / draft / "results.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    run(train_dflash.app, "card", "--out", str(tmp_path / "head"), "--answers", str(tmp_path / "kept"))
    card = (tmp_path / "head" / "README.md").read_text()
    assert "| EAGLE-3, `lossless` | 2.00 (0.61 to 3.39) | 100.0 % |" in card
    assert "Answers to 2 problems" in card
    assert DFlash.from_pretrained(tmp_path / "head").longest == 5
