"""The pair's tokenizer and batches."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.bundled_pair.recipe import POOL, RECIPES, Cycle, batches, build_model, build_tokenizer
from hf_lossy_assist.tasks import Arithmetic
from tests.tiny_pair import TINY


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(200)


def test_every_digit_is_a_token(tokenizer):
    digits = [token for token in tokenizer.tokenize("There are 1234567890 apples, 70 + 5 = 75.") if token.isdigit()]
    assert digits == list("123456789070575")
    assert not [token for token in tokenizer.get_vocab() if len(token) > 1 and any(c.isdigit() for c in token)]


def test_a_prompt_begins_with_bos_and_has_no_eos(tokenizer):
    ids = tokenizer("Question: none?\nAnswer:")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids


def test_text_comes_back_unchanged(tokenizer):
    text = Arithmetic().examples("test", 1)[0].prompt + " Ünusual — 5 €"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_the_tokenizer_is_the_same_every_time(tokenizer):
    assert build_tokenizer(200).get_vocab() == tokenizer.get_vocab()


def test_batches_are_the_same_from_any_step_on(tokenizer):
    recipe = dataclasses.replace(TINY, cycles=(Cycle(2 * POOL + 3),))
    everything = list(batches(recipe, tokenizer, 0))
    assert len(everything) == recipe.steps
    for first in (1, POOL, POOL + 2):
        rest = list(batches(recipe, tokenizer, first))
        assert len(rest) == recipe.steps - first
        for (ids, labels), (other_ids, other_labels) in zip(everything[first:], rest, strict=True):
            assert torch.equal(ids, other_ids)
            assert torch.equal(labels, other_labels)


def test_labels_are_the_answer_and_its_end(tokenizer):
    task = Arithmetic()
    for ids, labels in batches(TINY, tokenizer, 0):
        for row, label in zip(ids, labels, strict=True):
            answer = label[label != -100]
            assert answer[-1] == tokenizer.eos_token_id
            assert task.extract_answer(tokenizer.decode(answer)) is not None
            prompt = tokenizer.decode(row[: int((label != -100).nonzero()[0])], skip_special_tokens=True)
            assert prompt.endswith("\nAnswer:")
            assert torch.equal(row[label != -100], answer)


def test_every_pair_s_recipes_are_of_that_pair():
    for name, pair in RECIPES.items():
        assert {recipe.pair for recipe in pair.models.values()} == {name}
        assert set(pair.models) == {"target", "draft"}


def test_a_recipe_s_seed_decides_the_weights(tokenizer):
    a, b = build_model(TINY, tokenizer), build_model(TINY, tokenizer)
    c = build_model(dataclasses.replace(TINY, seed=1), tokenizer)
    assert torch.equal(a.lm_head.weight, b.lm_head.weight)
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)
