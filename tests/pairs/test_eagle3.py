"""The bundled EAGLE-3 head: chains, trees, and the rules that decide them, on weights that ship."""

from __future__ import annotations

import re
from functools import partial

import pytest

from hf_lossy_assist import enabled, pairs
from tests.pairs.heads import answered
from tests.parity import assert_same_text

TREE = {"tree": {"depth": 5, "top_k": 4, "nodes": 16}}
SHAPES = {"chain": {}, "tree": TREE}
FOLDER = pairs.hub_cards() / "arithmetic-eagle3"


run = partial(answered, head="eagle3")


def kept(*args, **kwargs) -> float:
    return run(*args, **kwargs).lossy_stats.mean_accepted


@pytest.fixture(scope="module")
def lossless(pair: pairs.Pair) -> dict[str, float]:
    """What the lossless rule keeps of six texts' drafts."""
    with enabled(pair.target):
        return {name: kept(pair, "lossless", lossy_config=config) for name, config in SHAPES.items()}


def test_the_head_is_small_and_fits_the_target(pair: pairs.Pair):
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 2 * 2**20
    pair.eagle3.check(pair.target)
    assert pair.eagle3.dtype == pair.target.dtype


@pytest.mark.parametrize("config", [{}, TREE], ids=["chain", "tree"])
def test_lossless_texts_are_the_target_s(pair: pairs.Pair, config: dict):
    inputs = pair.tokenizer(pair.task.examples("validation", 1)[0].prompt, return_tensors="pt")
    plain = pair.target.generate(
        **inputs, do_sample=False, max_new_tokens=160, return_dict_in_generate=True, output_logits=True
    )
    assert_same_text(run(pair, "lossless", 1, lossy_config=config).sequences, plain)


def test_what_the_card_says_is_kept(lossless: dict[str, float]):
    """Six problems against the interval of the card's many, widened by the spread of six."""
    card = (FOLDER / "README.md").read_text()
    for label, own in lossless.items():
        row = re.search(rf"^\| `lossless`, {label}.*\| ([\d.]+) \(([\d.]+) to ([\d.]+)\)", card, re.MULTILINE)
        mean, low, high = map(float, row.groups())
        assert low <= mean <= high
        assert own == pytest.approx(mean, rel=0.25)


@pytest.mark.parametrize("shape", SHAPES)
def test_lossy_rules_keep_more_of_its_drafts(pair: pairs.Pair, lossless: dict[str, float], shape: str):
    naive = {"criterion": "naive", "dropout": 0.3, "seed": 0}
    assert kept(pair, "dropmatch", lossy_config={**naive, **SHAPES[shape]}) > lossless[shape]
    assert kept(pair, "judge", lossy_head=pair.heads["judge"], lossy_config=SHAPES[shape]) > lossless[shape]


def test_trees_keep_more_than_chains(lossless: dict[str, float]):
    assert lossless["tree"] > lossless["chain"]
