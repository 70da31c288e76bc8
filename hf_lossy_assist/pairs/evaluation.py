"""How often a model of a pair answers right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..tasks import Example, Task

MAX_NEW_TOKENS = 160


@dataclass(frozen=True)
class Evaluation:
    """Exact answers of one model.

    Attributes
    ----------
    problems, correct
        How many problems were put, and how many were answered right.
    unanswered
        How many responses stated no answer at all.
    """

    problems: int
    correct: int
    unanswered: int

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.problems if self.problems else 0.0


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    n: int = 1000,
    *,
    split: str = "test",
    batch_size: int = 50,
    on_batch: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Measure the exact-answer accuracy of a model on its own, greedily.

    Parameters
    ----------
    model, tokenizer, task
        As in a :class:`~hf_lossy_assist.pairs.Pair`.
    n, split
        The first ``n`` problems of a split.
    batch_size
        Prompts answered at once, padded on the left.
    on_batch
        Called with the number of finished problems.
    """
    # Prompts of one length stand together, so that little is padding.
    examples = sorted(task.examples(split, n), key=lambda example: len(example.prompt))
    correct = unanswered = 0
    for start in range(0, len(examples), batch_size):
        batch = examples[start : start + batch_size]
        for example, response in zip(batch, respond(model, tokenizer, batch), strict=True):
            answer = task.extract_answer(response)
            correct += task.equivalent(answer, example.answer)
            unanswered += answer is None
        on_batch(start + len(batch))
    return Evaluation(len(examples), correct, unanswered)


@torch.inference_mode()
def respond(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> list[str]:
    """Return a model's greedy response to every example."""
    prompts = tokenizer([e.prompt for e in examples], return_tensors="pt", padding=True, padding_side="left")
    prompts = prompts.to(model.device)
    output = model.generate(**prompts, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    return tokenizer.batch_decode(output[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
