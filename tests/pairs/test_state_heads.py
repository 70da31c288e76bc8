"""The bundled EAGLE-3 and DFlash heads: chains, trees and blocks, and rules that decide them, on weights that ship."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hf_lossy_assist import enabled, pairs
from tests.parity import assert_lossless

TREE = {"tree": {"depth": 5, "top_k": 4, "nodes": 16}}
CASES = {
    "chain": ("eagle3", {}, r"`lossless`, chain.*"),
    "tree": ("eagle3", TREE, r"`lossless`, tree.*"),
    "block": ("dflash", {}, "DFlash, `lossless` "),
}
"""For each shape of drafts the head, its settings, and the row of its card."""


def run(pair: pairs.Pair, shape: str, mode: str, n: int = 6, config: Any = None, **kwargs: Any) -> Any:
    """Return the output for problems of the validation split, which no training saw."""
    head, settings, _ = CASES[shape]
    prompts = [example.prompt for example in pair.task.examples("validation", n)]
    inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
    return pair.target.generate(
        **inputs, assistant_model=getattr(pair, head), lossy_mode=mode, lossy_config={**settings, **(config or {})},
        num_assistant_tokens=5, max_new_tokens=160, do_sample=False, return_dict_in_generate=True, **kwargs,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lossless(pair: pairs.Pair) -> dict[str, float]:
    """What the lossless rule keeps of six texts' drafts."""
    with enabled(pair.target):
        return {shape: run(pair, shape, "lossless").lossy_stats.mean_accepted for shape in CASES}


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_a_head_is_small_and_fits_the_target(pair: pairs.Pair, name: str):
    head, folder = getattr(pair, name), pairs.hub_cards() / f"arithmetic-{name}"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 * 2**20
    head.check(pair.target)
    assert head.dtype == pair.target.dtype


@pytest.mark.parametrize("shape", CASES)
def test_lossless_texts_are_the_target_s(pair: pairs.Pair, shape: str):
    head, settings, _ = CASES[shape]
    inputs = pair.tokenizer(pair.task.examples("validation", 1)[0].prompt, return_tensors="pt")
    drafting = {"assistant_model": getattr(pair, head), "lossy_config": settings, "num_assistant_tokens": 5}
    assert_lossless(pair.target, drafting, **inputs, max_new_tokens=160)


@pytest.mark.parametrize("shape", CASES)
def test_what_the_card_says_is_kept(lossless: dict[str, float], shape: str):
    """Six problems against the interval of the card's many, widened by the spread of six."""
    head, _, row = CASES[shape]
    card = (pairs.hub_cards() / f"arithmetic-{head}" / "README.md").read_text()
    found = re.search(rf"^\| {row}\| ([\d.]+) \(([\d.]+) to ([\d.]+)\)", card, re.MULTILINE)
    mean, low, high = map(float, found.groups())
    assert low <= mean <= high
    assert lossless[shape] == pytest.approx(mean, rel=0.25)


@pytest.mark.parametrize(("shape", "mode"), [*((x, "dropmatch") for x in CASES), ("chain", "judge"), ("tree", "judge")])
def test_lossy_rules_keep_more_of_its_drafts(pair: pairs.Pair, lossless: dict[str, float], shape: str, mode: str):
    own = {"lossy_head": pair.heads["judge"]} if mode == "judge" else {}
    config = {} if mode == "judge" else {"criterion": "naive", "dropout": 0.3, "seed": 0}
    assert run(pair, shape, mode, config=config, **own).lossy_stats.mean_accepted > lossless[shape]


def test_trees_keep_more_than_chains(lossless: dict[str, float]):
    assert lossless["tree"] > lossless["chain"]
