"""The bundled heads belong to their pairs, and do their work."""

from __future__ import annotations

import pytest

from benchmarks.bundled_pair.recipe import RECIPES
from hf_lossy_assist import JudgeHead, VerifierHead, pairs


@pytest.fixture(scope="module", params=list(RECIPES))
def pair(request) -> pairs.Pair:
    return pairs.load(request.param)


def run(pair: pairs.Pair, mode, n: int = 12, **kwargs):
    """Return the share of right answers, and drafted tokens kept per round."""
    examples = pair.task.examples("validation", n)
    inputs = pair.tokenizer([x.prompt for x in examples], return_tensors="pt", padding=True, padding_side="left")
    out = pair.target.generate(
        **inputs, assistant_model=pair.draft, lossy_mode=mode, num_assistant_tokens=16, max_new_tokens=160,
        do_sample=False, return_dict_in_generate=True, **kwargs,
    )  # fmt: skip
    texts = pair.tokenizer.batch_decode(out.sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = sum(pair.task.correct(x, text) for x, text in zip(examples, texts, strict=True))
    return right / n, out.lossy_stats


def test_the_judge_keeps_more_than_lossless_and_answers_as_well(pair):
    """A head that guesses keeps more too, but half of the draft's own answers are wrong."""
    lossless, before = run(pair, "lossless")
    judged, after = run(pair, "judge", lossy_head=pair.heads["judge"])
    assert after.mean_accepted > 1.2 * before.mean_accepted
    assert judged >= lossless - 1 / 12


def test_the_verifier_saves_calls_of_the_target(pair):
    _, stats = run(pair, "sprinter", n=4, lossy_head=pair.heads["verifier"], lossy_config={"threshold": 0.7})
    assert stats.unverified > 0.5 * len(stats.trace)
    assert stats.mean_run > 1


def test_every_head_has_the_kind_its_name_says(pair):
    assert {name: type(head) for name, head in pair.heads.items()} == {"judge": JudgeHead, "verifier": VerifierHead}
    assert set(pair.rule_heads) == {"judge", "sprinter"}
    for head in pair.heads.values():
        head.check(pair.target, pair.draft)
        assert 0.75 < head.config.metrics["auc"] <= 1
        assert len(head.config.results) >= 6, "what it does on the test split is on its card"
