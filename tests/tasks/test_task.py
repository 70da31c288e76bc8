"""What every task can do, and what follows from its three methods."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.tasks import Example, Task

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class Echo(Task):
    """The answer is the last word."""

    name = "echo"
    splits = ("test",)

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return [Example("Ada has 3 apples.", "apples")][:n]

    def extract_answer(self, text: str) -> str | None:
        return text.split()[-1] if text.split() else None


class Polite(Echo):
    """A task that says something else to a chat model."""

    def user_turn(self, example: Example) -> str:
        return f"Please: {example.prompt}"


@pytest.fixture
def tokenizer():
    """Byte level, and it begins every text with its BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(["<s>", *alphabet])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


def test_without_a_template_the_prompt_is_what_the_model_sees(tokenizer):
    [example] = Echo().examples("test", 1)
    assert Echo().render(example, tokenizer) == example.prompt
    assert Echo().encode(example, tokenizer) == tokenizer(example.prompt)["input_ids"]
    assert Echo().encode(example, tokenizer)[0] == tokenizer.bos_token_id


def test_a_template_makes_a_user_turn_opens_the_answer_and_brings_its_own_bos(tokenizer):
    tokenizer.chat_template = TEMPLATE
    [example] = Echo().examples("test", 1)
    assert Echo().render(example, tokenizer) == "<s>[user] Ada has 3 apples. [assistant]"
    assert Polite().render(example, tokenizer) == "<s>[user] Please: Ada has 3 apples. [assistant]"
    assert Echo().encode(example, tokenizer).count(tokenizer.bos_token_id) == 1
    turn = {"role": "user", "content": example.prompt}
    templated = tokenizer.apply_chat_template([turn], add_generation_prompt=True, return_dict=False)
    assert Echo().encode(example, tokenizer) == templated


@pytest.mark.parametrize(
    ("current", "new", "kept"),
    [("two apples", "3 apples", True), ("apples", "pears", False), ("apples", "", False), ("", "", False)],
)
def test_an_answer_is_kept_or_right_where_it_is_the_same(current, new, kept):
    [example] = Echo().examples("test", 1)
    assert Echo().keeps_answer(example, current, new) is kept
    assert Echo().correct(example, new) is Echo().equivalent(Echo().extract_answer(new), "apples") is kept


def test_a_split_that_is_not_there_is_named():
    with pytest.raises(LossyValueError, match=r"`split` has to be one of \['test'\], but is 'train'"):
        Echo().examples("train", 1)
