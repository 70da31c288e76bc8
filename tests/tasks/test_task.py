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


@pytest.fixture
def chat_tokenizer(tokenizer):
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_without_a_template_the_prompt_is_what_the_model_sees(tokenizer):
    [example] = Echo().examples("test", 1)
    assert Echo().render(example, tokenizer) == example.prompt
    assert Echo().encode(example, tokenizer) == tokenizer(example.prompt)["input_ids"]


def test_a_template_makes_a_user_turn_and_opens_the_answer(chat_tokenizer):
    [example] = Echo().examples("test", 1)
    bos = chat_tokenizer.bos_token
    assert Echo().render(example, chat_tokenizer) == f"{bos}[user] Ada has 3 apples. [assistant]"
    assert Polite().render(example, chat_tokenizer) == f"{bos}[user] Please: Ada has 3 apples. [assistant]"


def test_a_template_s_bos_is_not_doubled(chat_tokenizer):
    [example] = Echo().examples("test", 1)
    bos = chat_tokenizer.bos_token_id
    assert chat_tokenizer(example.prompt)["input_ids"][0] == bos  # else this test would show nothing
    assert Echo().encode(example, chat_tokenizer).count(bos) == 1
    assert Echo().encode(example, chat_tokenizer) == chat_tokenizer.apply_chat_template(
        [{"role": "user", "content": example.prompt}], add_generation_prompt=True, return_dict=False
    )


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
