"""The rules on models that were really trained, and the heads that were trained for them: judges and drafters."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from hf_lossy_assist import JudgeHead, VerifierHead, enabled, pairs
from tests.parity import assert_lossless

GREEDY = {"do_sample": False, "max_new_tokens": 160, "return_dict_in_generate": True}


def test_lossless_text_is_plain_text(pair: pairs.Pair):
    for example, gamma in zip(pair.task.examples("test", 3), (1, 5, 16), strict=True):
        inputs = pair.tokenizer(example.prompt, return_tensors="pt")
        assert_lossless(pair.target, {"assistant_model": pair.draft, "num_assistant_tokens": gamma}, **inputs, **GREEDY)


def answered(pair: pairs.Pair, mode: str, n: int = 12, **kwargs):
    """Return the share of right answers to problems of the validation split, and the statistics."""
    examples = pair.task.examples("validation", n)
    batch = pair.tokenizer([x.prompt for x in examples], return_tensors="pt", padding=True)
    out = pair.target.generate(
        **batch, assistant_model=pair.draft, lossy_mode=mode, num_assistant_tokens=16, **GREEDY, **kwargs
    )
    texts = pair.tokenizer.batch_decode(out.sequences[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    right = sum(pair.task.correct(x, text) for x, text in zip(examples, texts, strict=True))
    return right / n, out.lossy_stats


def test_lossy_rules_keep_more_than_lossless_and_the_judge_answers_as_well(pair: pairs.Pair):
    """A judge that guesses keeps more too, but half of the draft's own answers are wrong."""
    right, lossless = answered(pair, "lossless")
    for mode, config in (("dropmatch", {"seed": 0}), ("topk", {"k": 2}), ("relaxed", {"top_n": 10, "delta": 0.6})):
        assert answered(pair, mode, lossy_config=config)[1].mean_accepted > lossless.mean_accepted + 0.2, mode
    judged, stats = answered(pair, "judge", lossy_head=pair.heads["judge"])
    assert stats.mean_accepted > 1.2 * lossless.mean_accepted
    assert judged >= right - 1 / 12


def test_the_verifier_saves_calls_of_the_target(pair: pairs.Pair):
    _, stats = answered(pair, "sprinter", 4, lossy_head=pair.heads["verifier"], lossy_config={"threshold": 0.7})
    assert stats.unverified > 0.5 * len(stats.trace)
    assert stats.mean_run > 1


def test_every_head_has_the_kind_its_name_says(pair: pairs.Pair):
    assert {name: type(head) for name, head in pair.heads.items()} == {"judge": JudgeHead, "verifier": VerifierHead}
    assert set(pair.rule_heads) == {"judge", "sprinter"}
    for head in pair.heads.values():
        head.check(pair.target, pair.draft)
        assert 0.75 < head.config.metrics["auc"] <= 1


def test_any_eos_of_the_target_or_string_of_the_task_ends_an_answer(pair: pairs.Pair, monkeypatch):
    monkeypatch.setattr(pair.target.generation_config, "eos_token_id", [5, 7])
    for tokens, longest, cut in (([3, 4], 2, True), ([3, 5], 2, False), ([3, 7], 2, False), ([3, 4], 3, False)):
        assert pair.is_cut(torch.tensor(tokens), "6. Question", longest) is cut
    monkeypatch.setattr(type(pair.task), "ends", ("Question",))
    assert not pair.is_cut(torch.tensor([3, 4]), "6. Question", 2)


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
