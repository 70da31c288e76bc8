"""One tokenizer, vocabularies padded differently."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist.drafting.vocabulary import PaddedVocabulary, vocabulary_of
from tests.acceptors.fixtures import chi_square_p
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
