"""The recipes of the EAGLE-3 and DFlash heads: exactly resumable, and by the papers' losses."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

from benchmarks import train_dflash, train_eagle3
from hf_lossy_assist import pairs
from tests.generation.drafters.uncached import dflash_logits

SMALL = {
    "layers": (0, 1), "intermediate": 8, "key_value_heads": 2, "written": 8, "chunk": 4, "batch": 4, "pool": 2,
    "steps": 6, "cosine": 4, "warmup": 1,
}  # fmt: skip
DFLASH = train_dflash.Recipe(**SMALL, own_layers=1, block_size=4, anchors=3)
RECIPES = {train_eagle3: train_eagle3.Recipe(**SMALL, beyond=1, unrolled=2), train_dflash: DFLASH}


@pytest.fixture
def small(tiny_pair_folder):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    return dataclasses.replace(pair, task=type("Short", (type(pair.task),), {"max_new_tokens": 6})())


@pytest.mark.parametrize("study", RECIPES, ids=lambda study: study.__name__)
def test_a_resumed_run_ends_with_the_same_head(study, small, tmp_path, monkeypatch):
    recipe, loss_of, seen = RECIPES[study], study.loss_of, []
    straight = study.fit(small, recipe, tmp_path / "straight")

    def interrupt(*args):
        seen.append(args[4])  # EAGLE-3's drafted tokens in a row
        if len(seen) == 5:
            raise KeyboardInterrupt
        return loss_of(*args)

    monkeypatch.setattr(study, "loss_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        study.fit(small, recipe, tmp_path / "resumed", save_steps=2)
    (whole,) = tmp_path.glob("resumed/*/checkpoint-4")
    half = shutil.copytree(whole, whole.with_name("checkpoint-6"))
    (half / "trainer_state.json").unlink()  # a run that ended while it was written
    resumed = study.fit(small, recipe, tmp_path / "resumed", save_steps=2)
    assert len(seen) == 7, "step 5 was repeated"
    if study is train_eagle3:
        assert seen == [1, 1, 1, 2, 2, 2, 2], "the last three steps train on two tokens"
    for name, weight in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight), name
    straight.check(small.target)


def test_the_loss_is_that_of_blocks_one_by_one(small):
    """A block at a time, with what is drafted in generation, gives the mean over all of them."""
    recipe = dataclasses.replace(DFLASH, anchors=5)
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
