"""The rules on models that were really trained, and the heads that were trained for them."""

from __future__ import annotations

import torch

from hf_lossy_assist import JudgeHead, VerifierHead, pairs
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
