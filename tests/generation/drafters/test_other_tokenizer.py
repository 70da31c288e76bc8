"""A draft with a tokenizer of its own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyError
from hf_lossy_assist.drafting.vocabulary import check_tokenizers
from hf_lossy_assist.generation.drafters.other_tokenizer import Translation
from tests.acceptors.fixtures import chi_square_p
from tests.parity import assert_lossless
from tests.tiny_models import constant
from tests.two_tokenizers import DRAFT, SIZE, TARGET, WORDS, pair, prompts, tokenizer

GREEDY = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None, "return_dict_in_generate": True}


@pytest.mark.parametrize("gamma", [1, 5])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_lossless_parity(gamma: int, noise: float):
    target, draft = pair(noise)
    before = copy.deepcopy((draft.state_dict(), draft.config.to_dict(), draft.generation_config.to_dict()))
    inputs = prompts("ba mi ko")
    drafting = {"assistant_model": draft, "assistant_tokenizer": DRAFT, "num_assistant_tokens": gamma}
    _, ours = assert_lossless(target, drafting, **inputs, **GREEDY, tokenizer=TARGET)
    assert ours.lossy_stats.acceptance_rate > (0.5 if noise == 0 else 0.05)
    after = draft.state_dict(), draft.config.to_dict(), draft.generation_config.to_dict()
    assert all(torch.equal(before[0][name], value) for name, value in after[0].items())
    assert before[1:] == after[1:]


def test_sampling_has_the_target_s_law():
    """3,000 tokens, p > 1e-5: catches a law that is off by 0.05 anywhere."""
    a, b = tokenizer(["ba", "be", "bi"]), tokenizer(["bi", "bo", "be"])  # each has a word that the other lacks
    p = np.array([0.0001, 0.0999, 0.1, 0.1, 0.3, 0.25, 0.15])
    q = np.array([0.05, 0.05, 0.1, 0.1, 0.2, 0.2, 0.3])
    out = constant(p.tolist()).generate(
        input_ids=torch.full((30, 1), 4), attention_mask=torch.ones(30, 1).long(), do_sample=True, top_k=0,
        assistant_model=constant(q.tolist(), seed=2), tokenizer=a, assistant_tokenizer=b, eos_token_id=None,
        lossy_mode="lossless", lossy_config={"seed": 1}, max_new_tokens=100, return_dict_in_generate=True,
    )  # fmt: skip
    assert chi_square_p(np.bincount(out.sequences[:, 1:].flatten(), minlength=7), p) > 1e-5
    assert out.lossy_stats.acceptance_rate > 0.3


def test_translation():
    translation = Translation(TARGET, DRAFT, SIZE, len(DRAFT))
    shared = TARGET.convert_tokens_to_ids(["<s>", "ba", "mi"])
    assert DRAFT.convert_ids_to_tokens(translation.text(shared)) == ["<s>", "ba", "mi"]
    assert DRAFT.convert_ids_to_tokens(translation.token(TARGET.convert_tokens_to_ids(WORDS[36]))) == ["<unk>"]
    logits = translation.logits(torch.zeros(1, 1, len(DRAFT)))[0, 0]
    law = logits.softmax(-1)
    lacking = TARGET.convert_tokens_to_ids(WORDS[35:40])
    assert law[lacking].tolist() == [0] * 5
    assert logits[lacking].softmax(-1).tolist() == pytest.approx([0.2] * 5), "where processors forbid all others"
    assert law.count_nonzero() == SIZE - 5


def test_the_same_tokenizer_twice_takes_the_direct_path(monkeypatch):
    monkeypatch.setattr(
        "hf_lossy_assist.generation.drafters.other_tokenizer.TranslatedSource",
        lambda *_, **__: pytest.fail("translated"),
    )
    target, _ = pair()
    twin = tokenizer(WORDS)
    for other in (TARGET, twin):
        out = target.generate(
            **prompts("ba mi"), **GREEDY, assistant_model=target, tokenizer=TARGET, assistant_tokenizer=other,
            lossy_mode="lossless",
        )  # fmt: skip
        assert out.lossy_stats.acceptance_rate == 1


def test_what_is_no_tokenizer_is_refused():
    target, draft = pair()
    with pytest.raises(LossyError, match=r"`assistant_tokenizer`.*3"):
        target.generate(
            **prompts("ba"), assistant_model=draft, lossy_mode="lossless", tokenizer=TARGET, assistant_tokenizer=3
        )


def test_swapped_tokenizers_are_named():
    """By their sizes, and where these say nothing by where they come from."""
    target, draft = pair()
    target.config.vocab_size += 5000
    wanted = "`tokenizer` has to be the target's and `assistant_tokenizer` the draft model's"
    large = tokenizer([f"{word}{i}" for word in WORDS for i in range(50)])
    with pytest.raises(LossyError, match=wanted):
        check_tokenizers(target, draft, DRAFT, large)
    check_tokenizers(target, draft, large, DRAFT)
    target, draft = pair()
    named = [copy.deepcopy(TARGET), copy.deepcopy(DRAFT)]
    for name, model, own in zip(("org/target", "org/draft"), (target, draft), named, strict=True):
        model.name_or_path = own.name_or_path = name
    check_tokenizers(target, draft, *named)
    with pytest.raises(LossyError, match=wanted):
        check_tokenizers(target, draft, *reversed(named))
