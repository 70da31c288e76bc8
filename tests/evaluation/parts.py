"""A task of numbers, and the folder of an evaluation of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hf_lossy_assist.evaluation.answers import Answer, AnswerStore
from hf_lossy_assist.evaluation.evaluation import Evaluation
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.pairs import Pair
from hf_lossy_assist.tasks import Example, Task
from tests.tiny_models import noisy_copy, tiny

MODES = "plain,topk:k=2,topk:k=3,near_top:alpha=0.1"
SECONDS = {"plain": 4.0, "topk:k=2": 2.0, "near_top:alpha=0.1": 3.0}
"""What an answer takes, a second by default."""
TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)


class Numbers(Task):
    name = "numbers"
    splits = ("test",)
    max_new_tokens = 4

    def examples(self, split: str, n: int) -> list[Example]:
        return [Example(f"{i}", f"{i}") for i in range(n)]

    def encode(self, example: Example, tokenizer) -> list[int]:
        return [3 + int(example.prompt) % 40, 5, 6]

    def extract_answer(self, text: str) -> str | None:
        return text


class Words:
    pad_token_id = eos_token_id = 0

    def __call__(self, text: str, **kwargs):
        return {"input_ids": [int(word) for word in text.split()]}

    def get_vocab(self):
        return {f"{i}": i for i in range(TARGET.config.vocab_size)}

    def batch_decode(self, rows, **kwargs):
        return [" ".join(map(str, row.tolist())) for row in rows]


def evaluation(limit: int = 400) -> Evaluation:
    return Evaluation(Pair(TARGET, DRAFT, Words(), Numbers()), parse_modes(MODES), "plain", limit)


def write(path: Path, own: Evaluation, score: Callable[[str, int], float] = lambda mode, i: 1.0) -> Path:
    """Write the folder of an evaluation whose modes have these scores."""
    store = AnswerStore(path, own.plan())
    for mode in own.plan()["modes"]:
        for i in range(own.limit):
            store.add(Answer(mode, i, score(mode, i), 8, 4, 6 + i % 2, SECONDS.get(mode, 1.0), "", 2))
    return path
