"""Drafts that choose among a text's most frequent tokens only."""

from __future__ import annotations

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
from tests.acceptors.fixtures import chi_square_p, pooled
from tests.tiny_models import prompt, tiny

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
