"""A tiny random pair with a task that its target answers right half of the time."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_lossy_assist.bench import dropout_choice
from hf_lossy_assist.pairs import Pair, evaluation
from hf_lossy_assist.pairs.recipe import build_tokenizer
from hf_lossy_assist.tasks import Arithmetic, Example, Task
from tests.models import noisy_copy

PROBLEMS = 6
MAX_NEW_TOKENS = 20


class Recital(Task):
    """The answer is a whole text: for every other prompt the one that the target says greedily."""

    name = "recital"

    def __init__(self, prompts: list[str], answers: list[str]) -> None:
        wrong = [answer[:-1] for answer in answers]
        self._examples = [
            Example(prompt, right if i % 2 else wrong[i])
            for i, (prompt, right) in enumerate(zip(prompts, answers, strict=True))
        ]

    def examples(self, split: str, n: int) -> list[Example]:
        return self._examples[:n]

    def extract_answer(self, text: str) -> str | None:
        return text or None

    def equivalent(self, a: str | None, b: str | None) -> bool:
        return a is not None and a == b


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer(100)


@pytest.fixture(scope="package", autouse=True)
def _short_responses():
    """Random models never come to an end by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "MAX_NEW_TOKENS", MAX_NEW_TOKENS)
        patch.setattr(dropout_choice, "MAX_NEW_TOKENS", MAX_NEW_TOKENS)
        yield


@pytest.fixture(scope="session")
def pair(tokenizer) -> Pair:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    target = LlamaForCausalLM(config).eval()
    prompts = [example.prompt for example in Arithmetic().examples("test", PROBLEMS)]
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        out = target.generate(**ids, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        answers.append(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return Pair(target, noisy_copy(target, 0.01), tokenizer, Recital(prompts, answers))
