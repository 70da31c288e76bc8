"""Where rules should end their drafts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchmarks.draft_ends import LENGTH, Costs, places_of, summary
from hf_lossy_assist.acceptors import Lossless, Thresholds, TopK


@torch.no_grad()
def test_places_count_the_tokens_that_each_rule_keeps(pair):
    prompt = pair.tokenizer(
        "Question: Tom has 24 apples. Tom buys 18 more. Then he sells 9. How many apples has he?\nAnswer:",
        return_tensors="pt",
    ).input_ids
    ids = pair.target.generate(prompt, do_sample=False, max_new_tokens=40)
    rules = {"lossless": Lossless(), "topk": TopK(k=2), "everything": Thresholds(threshold_single=0)}
    models, seconds = SimpleNamespace(target=pair.target, draft=pair.draft), []
    places = places_of(models, ids, prompt.shape[1], rules, 1, seconds)
    assert len(seconds) == LENGTH * len(places) > LENGTH
    for place in places:
        text = ids[:, : prompt.shape[1] + place["place"]]
        drafted = pair.draft.generate(text, do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH)
        if place["length"] < LENGTH:
            continue  # a draft that ended goes on here, and not in `generate()`
        logits = pair.target(drafted).logits[0, text.shape[1] - 1 : -1]
        ranks = (logits > logits.gather(-1, drafted[0, text.shape[1] :, None])).sum(-1)
        for rule, rank in (("lossless", 0), ("topk", 1)):
            assert place["kept"][rule] == int((ranks <= rank).long().cumprod(0).sum())
        assert place["kept"]["everything"] == LENGTH
    assert len({place["kept"]["lossless"] for place in places}) > 1


def test_the_best_length_is_that_of_the_closed_form():
    # Kept tokens of rounds that take γ + 2 seconds: (min(γ, 4) + 1) / (γ + 2) is largest at 4, (γ + 1) / (γ + 2) at 32.
    costs = Costs(1.0, {1: 2.0, 32: 2.0})
    place = {"prompt": 1, "place": 0, "length": LENGTH, "q": [0.8] * LENGTH, "kept": {"lossless": 4, "everything": 32}}
    lossless, everything = summary(costs, [place] * 3)
    assert lossless[1:5] == ["4.00", "4", "4.00", "1.00"]
    assert everything[1:5] == ["5.00", "32", "32.00", f"{(33 / 34) / (5 / 6):.2f}"]
    # 0.8 to the fourth is 0.41, so that 0.5 ends drafts after four tokens; nothing ends all after 32.
    assert lossless[5:] == ["0.5", "4.00", "1.00", "1.00"]
    assert float(everything[5]) == 0.01


def test_a_draft_that_ends_its_text_has_no_more_tokens():
    costs = Costs(1.0, {1: 2.0, 32: 2.0})
    place = {"prompt": 1, "place": 0, "length": 6, "q": [0.99] * LENGTH, "kept": {"lossless": 4, "everything": 32}}
    assert summary(costs, [place])[1][1:4] == ["5.00", "6", pytest.approx("6.00")]
