"""Tokens of mathematics."""

from __future__ import annotations

import torch

from hf_lossy_assist import pairs
from hf_lossy_assist.evaluation import maths_tokens
from hf_lossy_assist.evaluation.maths_tokens import MathsTokens
from hf_lossy_assist.messages import Verification


def test_maths_tokens_of_a_tokenizer():
    pair = pairs.load("arithmetic")
    ids = maths_tokens.maths_tokens(pair.tokenizer)
    words = {pair.tokenizer.decode([i]).strip() for i in ids}
    assert set("0123456789+-=") <= words
    assert "apples" not in words
    assert pair.tokenizer.eos_token_id in ids


def test_a_mismatch_matters_where_either_token_is_of_mathematics():
    logits = torch.eye(6)[[1, 1, 4, 4, 0]][None]
    v = Verification(tokens=torch.tensor([[1, 2, 5, 1]]), logits=logits)
    kept = MathsTokens(important=frozenset({1, 3})).keep(v)
    assert kept.tolist() == [[True, False, True, False]]
