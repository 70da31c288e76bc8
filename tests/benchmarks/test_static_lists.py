"""Static lists of what matters: which tokens are on them, and what is kept by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from benchmarks.static_lists import (
    ListedPairs,
    ListedTokens,
    MismatchRates,
    maths_tokens,
    python_tokens,
)
from hf_lossy_assist import pairs
from hf_lossy_assist.core.messages import Verification


def test_tokens_of_mathematics():
    tokenizer = pairs.load("arithmetic").tokenizer
    ids = maths_tokens(tokenizer)
    words = {tokenizer.decode([i]).strip() for i in ids}
    assert set("0123456789+-=") <= words
    assert "apples" not in words
    assert tokenizer.eos_token_id in ids


def test_tokens_of_python():
    matters, free = ["for", "return", "sum", "<=", "3", "["], ["total", "xs", "keep"]
    ids = {word: i for i, word in enumerate(["</s>", *matters, *free])}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(ids, unk_token="</s>")), eos_token="</s>")
    assert python_tokens(tokenizer) == tuple(range(1 + len(matters)))


def test_a_mismatch_matters_where_either_token_is_listed():
    logits = torch.eye(6)[[1, 1, 4, 4, 0]][None]
    v = Verification(tokens=torch.tensor([[1, 2, 5, 1]]), logits=logits)
    assert ListedTokens(important=(1, 3)).keep(v).tolist() == [[True, False, True, False]]


def test_a_mismatch_is_free_where_the_pair_is_listed_this_way_round():
    logits = torch.eye(6)[[1, 1, 4, 4, 0]][None]
    v = Verification(tokens=torch.tensor([[1, 2, 5, 1]]), logits=logits)
    assert ListedPairs(free=((1, 2), (1, 4))).keep(v).tolist() == [[True, True, False, False]]
    assert ListedPairs().keep(v).tolist() == [[True, False, False, False]]


def test_rates_are_those_counted_by_hand():
    target, draft, important = [1, 1, 2, 1, 3], [2, 2, 1, 4, 1], [1, 0, 1, 0, 0]
    rates = MismatchRates.of(np.array(target), np.array(draft), np.array(important, dtype=float), 6)
    for token in range(6):
        mine = [m for a, b, m in zip(target, draft, important, strict=True) if token in (a, b)]
        assert rates.tokens[token] == pytest.approx((sum(mine) + 1) / (len(mine) + 2))
    assert rates.pairs == pytest.approx({(1, 2): 2 / 4, (2, 1): 2 / 3, (1, 4): 1 / 3, (3, 1): 1 / 3})
    assert rates.important(0.45) == (0, 2, 5)
    assert rates.free_pairs(0.4) == ((1, 4), (3, 1))
