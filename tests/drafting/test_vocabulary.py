"""One tokenizer, vocabularies padded differently, or trimmed to frequent tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist import (
    LossyUnsupportedError,
    LossyValueError,
    frequent_tokens,
    last_stats,
    pairs,
    quantize_draft,
    trim_draft_vocabulary,
)
from hf_lossy_assist.drafting.vocabulary import PaddedVocabulary, vocabulary_of
from tests.acceptors.fixtures import chi_square_p, pooled
from tests.parity import assert_lossless
from tests.tiny_models import VOCAB, constant, noisy_copy, padded, prompt, resized, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None, "return_dict_in_generate": True}


@pytest.mark.parametrize(("target_size", "draft_size"), [(VOCAB, VOCAB - 9), (VOCAB, VOCAB + 7)])
@pytest.mark.parametrize("batch", [1, 4])
def test_lossless_parity(target_size: int, draft_size: int, batch: int):
    target = tiny()
    draft = resized(noisy_copy(target, 0.01), draft_size)
    inputs = {"input_ids": prompt()} if batch == 1 else padded()
    plain, ours = assert_lossless(target, {"assistant_model": draft}, **inputs, **GREEDY)
    assert plain.sequences.max() >= draft_size or draft_size > target_size, "the text has tokens the draft lacks"
    assert ours.lossy_stats.accepted > 0


@pytest.mark.parametrize("size", [4, 8])
def test_sampling_has_the_target_s_law(size: int):
    """6,000 tokens, p > 1e-5: catches a law that is off by 0.03 anywhere."""
    p = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    q = np.array([0.2, 0.3, 0.1, 0.15, 0.05, 0.1, 0.04, 0.06][:size])
    out = constant(p.tolist()).generate(
        input_ids=torch.ones(20, 1).long(), attention_mask=torch.ones(20, 1).long(), do_sample=True, top_k=0,
        assistant_model=constant((q / q.sum()).tolist(), seed=2), lossy_mode="lossless", lossy_config={"seed": 1},
        max_new_tokens=300, num_assistant_tokens=4, return_dict_in_generate=True,
    )  # fmt: skip
    assert chi_square_p(np.bincount(out.sequences[:, 1:].flatten(), minlength=6), p) > 1e-5
    assert out.lossy_stats.acceptance_rate > 0.3


def only_the_last_two_after_token_0(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    others = torch.arange(scores.shape[-1]) < scores.shape[-1] - 2
    return scores.masked_fill((ids[:, -1:] == 0) & others, -torch.inf)


def test_drafts_decided_as_wholes_where_processors_leave_only_tokens_that_the_draft_lacks():
    """First tokens of 2,000 rows, p > 1e-5: without a law after token 0, that one would be drafted in vain."""
    p, q = [0.3, 0.25, 0.2, 0.1, 0.1, 0.05], [0.35, 0.3, 0.2, 0.15]
    out = constant(p).generate(
        input_ids=torch.ones(2000, 1).long(), attention_mask=torch.ones(2000, 1).long(), do_sample=True, top_k=0,
        assistant_model=constant(q, seed=2), lossy_mode="lossless", max_new_tokens=3, num_assistant_tokens=2,
        lossy_config={"seed": 1, "verification": "block"}, logits_processor=[only_the_last_two_after_token_0],
    )  # fmt: skip
    assert chi_square_p(np.bincount(out[:, 1], minlength=6), np.array(p)) > 1e-5


def test_a_law_over_the_target_s_tokens():
    target, draft = tiny(), resized(tiny(), VOCAB - 9)
    vocabulary = vocabulary_of(target, draft)
    logits = vocabulary.logits(torch.zeros(1, 2, VOCAB - 9))
    assert logits.shape == (1, 2, VOCAB)
    assert logits.softmax(-1)[0, 0].tolist() == pytest.approx([1 / (VOCAB - 9)] * (VOCAB - 9) + [0] * 9)
    assert vocabulary.context(torch.tensor([[3, VOCAB - 9, VOCAB - 10]])).tolist() == [[3, 0, VOCAB - 10]]
    cut = PaddedVocabulary(4, 6)
    assert cut.logits(torch.arange(6.0)[None, None])[0, 0].tolist() == [0, 1, 2, 3]
    assert cut.context(torch.tensor([[3]])).tolist() == [[3]]


KEPT = (3, 7, 11, 12, 40)


def _q(model, ids) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits.softmax(-1)


def test_q_is_the_draft_s_own_over_the_kept_tokens(pair: pairs.Pair):
    ids = torch.arange(20, 40)[None]
    full, few = _q(pair.draft, ids), _q(trim_draft_vocabulary(pair.draft, KEPT), ids)
    expected = torch.zeros_like(full)
    expected[..., KEPT] = full[..., KEPT] / full[..., KEPT].sum(-1, keepdim=True)
    assert torch.allclose(few, expected, atol=1e-6)
    assert type(pair.draft.lm_head) is torch.nn.Linear


def test_a_draft_in_half_precision():
    draft = trim_draft_vocabulary(tiny().half(), KEPT)
    assert _q(draft, prompt())[0, -1].nonzero()[:, 0].tolist() == [*KEPT]


def test_first_tokens_keep_their_distribution(pair: pairs.Pair):
    """99.9 % chi-square over 4,000 draws; a draft that hid its cut would shift p by its total variation to q."""
    ids = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt").input_ids
    ids = ids[:, :2]  # 4,000 whole prompts would take a minute
    # The likeliest tokens under p but the very first: corrections have to bring that one back.
    p = _q(pair.target, ids)[0, -1]
    draft = trim_draft_vocabulary(pair.draft, p.topk(6).indices[1:].tolist())
    torch.manual_seed(1)
    out = pair.target.generate(
        ids.repeat(4000, 1), do_sample=True, top_k=0, max_new_tokens=2, assistant_model=draft, num_assistant_tokens=1,
        lossy_mode="lossless",
    )  # fmt: skip
    seen = torch.bincount(out[:, ids.shape[1]], minlength=len(p)).double()
    assert chi_square_p(*pooled(seen.numpy(), p.double().numpy())) > 1e-3


@pytest.mark.parametrize("change", [lambda draft: draft, quantize_draft], ids=["trimmed", "and quantised"])
def test_greedy_lossless_text_is_the_target_s(pair: pairs.Pair, change):
    ids = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
    plain = pair.target.generate(**ids, max_new_tokens=30, do_sample=False)
    tokens = frequent_tokens([plain[0, -30:].tolist()], 12)
    draft = change(trim_draft_vocabulary(pair.draft, tokens))
    out = pair.target.generate(**ids, max_new_tokens=30, do_sample=False, assistant_model=draft, lossy_mode="lossless")
    assert torch.equal(out, plain)
    assert last_stats(pair.target).accepted > 0


def test_frequent_tokens_are_counted():
    assert frequent_tokens([[5, 7, 7], [7, 5, 3]], 2) == [7, 5]
    assert frequent_tokens([[5, 7, 7]], 5, always=[7, 2]) == [7, 2, 5]
    with pytest.raises(LossyValueError, match="`count` has to be an int >= 2, but is 1"):
        frequent_tokens([[1]], 1, always=[4, 5])


def test_what_cannot_be_trimmed_is_refused(pair: pairs.Pair, tmp_path):
    for tokens in ([], [-1], [10**6]):
        with pytest.raises(LossyValueError, match="`tokens` has to be ids >= 0 and <"):
            trim_draft_vocabulary(pair.draft, tokens)
    with pytest.raises(LossyUnsupportedError, match="trim the draft's vocabulary before it is quantised"):
        trim_draft_vocabulary(quantize_draft(pair.draft), KEPT)
    with pytest.raises(LossyUnsupportedError, match="can't be saved"):
        trim_draft_vocabulary(pair.draft, KEPT).save_pretrained(tmp_path)
