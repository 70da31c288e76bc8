"""Tiny random models for measurements: a bare pair, and one with a task that its target answers right half the time."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.bundled_pair.recipe import build_tokenizer
from hf_lossy_assist.pairs import Pair
from hf_lossy_assist.tasks import Arithmetic, Example, Task
from tests.tiny_models import _COMMON, noisy_copy, tiny

PROBLEMS = 6
_OF_A_PAIR = {each.name for each in fields(Pair)}
MAX_NEW_TOKENS = 20


class Recital(Task):
    """The answer is a whole text: for every other prompt the one that the target says greedily."""

    name = "recital"
    max_new_tokens = MAX_NEW_TOKENS

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


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer(100)


@pytest.fixture(scope="session")
def models() -> Pair:
    """Pair that say much the same, and never come to an end by themselves."""
    target = tiny("llama")
    target.generation_config.eos_token_id = None
    return Pair(target, noisy_copy(target, 0.02))


def changed(work, **changes):
    """Return an evaluation or a labelling with other values, also in its pair."""
    own = {name: changes.pop(name) for name in [*changes] if name in _OF_A_PAIR}
    return replace(work, pair=replace(work.pair, **own), **changes)


@pytest.fixture(scope="session")
def pair(tokenizer) -> Pair:
    torch.manual_seed(0)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = LlamaConfig(**_COMMON | ids | {"vocab_size": len(tokenizer), "max_position_embeddings": 512})
    target = LlamaForCausalLM(config).eval()
    prompts = [example.prompt for example in Arithmetic().examples("test", PROBLEMS)]
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        out = target.generate(**ids, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        answers.append(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return Pair(target, noisy_copy(target, 0.01), tokenizer, Recital(prompts, answers))
