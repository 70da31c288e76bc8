"""The bundled DFlash head, on weights that ship."""

from __future__ import annotations

import re
from functools import partial

import pytest

from hf_lossy_assist import enabled, pairs
from tests.pairs.heads import answered
from tests.parity import assert_same_text

FOLDER = pairs.hub_cards() / "arithmetic-dflash"


run = partial(answered, head="dflash")


@pytest.fixture(scope="module")
def lossless(pair: pairs.Pair) -> float:
    """What the lossless rule keeps of six texts' drafts."""
    with enabled(pair.target):
        return run(pair, "lossless").lossy_stats.mean_accepted


def test_the_head_is_small_and_fits_the_target(pair: pairs.Pair):
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 2 * 2**20
    pair.dflash.check(pair.target)
    assert pair.dflash.dtype == pair.target.dtype


def test_lossless_texts_are_the_target_s(pair: pairs.Pair):
    inputs = pair.tokenizer(pair.task.examples("validation", 1)[0].prompt, return_tensors="pt")
    plain = pair.target.generate(
        **inputs, do_sample=False, max_new_tokens=160, return_dict_in_generate=True, output_logits=True
    )
    assert_same_text(run(pair, "lossless", 1).sequences, plain)


def test_what_the_card_says_is_kept(lossless: float):
    """Six problems against the card's mean of many, widened by the spread of six."""
    card = (FOLDER / "README.md").read_text()
    row = re.search(r"^\| DFlash, `lossless` \| ([\d.]+) \(([\d.]+) to ([\d.]+)\)", card, re.MULTILINE)
    mean, low, high = map(float, row.groups())
    assert low <= mean <= high
    assert lossless == pytest.approx(mean, rel=0.25)


def test_a_lossy_rule_keeps_more_of_its_drafts(pair: pairs.Pair, lossless: float):
    naive = {"criterion": "naive", "dropout": 0.3, "seed": 0}
    assert run(pair, "dropmatch", lossy_config=naive).lossy_stats.mean_accepted > lossless
