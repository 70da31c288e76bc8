"""Accuracies of answers, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..tasks import Example, Task
from .modes import DecodingMode, Models
from .requests import batches_of, run_request


def wilson(correct: int, problems: int) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy.

    Examples
    --------
    >>> [round(bound, 3) for bound in wilson(9, 10)]
    [0.596, 0.982]
    """
    from scipy.stats import binomtest

    interval = binomtest(correct, problems).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Quality:
    """The accuracy of one mode."""

    label: str
    # How many problems were put, and how many answered right.
    problems: int
    correct: int
    # 95 % interval of the accuracy (Wilson).
    low: float
    high: float
    # Accuracy less that of the reference, and half the width of its 95 % interval, from the differences problem by
    # problem; None of the reference itself.
    difference: float | None = None
    margin: float | None = None
    reference: str | None = None  # with which mode it is compared

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.problems


def judge(
    tokenizer: PreTrainedTokenizerBase, task: Task, examples: Sequence[Example], texts: Sequence[list[int]]
) -> list[bool]:
    """Tell which responses, as token ids, answer their example right."""
    responses = tokenizer.batch_decode(texts, skip_special_tokens=True)
    return [task.correct(example, response) for example, response in zip(examples, responses, strict=True)]


def qualities(right: Mapping[str, Sequence[bool]], reference: str | None = None) -> list[Quality]:
    """Sum up how often each mode was right on the same problems, and compare all with the mode ``reference``.

    Examples
    --------
    >>> lossless, other = qualities({"lossless": [True, True, False, True], "other": [True] * 4}, "lossless")
    >>> lossless.accuracy, other.difference
    (0.75, 0.25)
    """
    result = []
    for label, marks in right.items():
        compared: tuple = ()
        if reference in right and label != reference:
            apart = [a - b for a, b in zip(marks, right[reference], strict=True)]
            difference = sum(apart) / len(apart)
            variance = sum((x - difference) ** 2 for x in apart) / max(1, len(apart) - 1)
            compared = (difference, 1.96 * math.sqrt(variance / len(apart)), reference)
        result.append(Quality(label, len(marks), sum(marks), *wilson(sum(marks), len(marks)), *compared))
    return result


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of one model on its own."""

    # How many problems were put, and how many were answered right.
    problems: int
    correct: int
    unanswered: int  # how many responses stated no answer at all

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
) -> Accuracy:
    """Measure the exact-answer accuracy of a model on its own, greedily.

    ``on_batch`` is called with the number of finished problems.
    """
    # Prompts of one length stand together, so that little is padding.
    examples = sorted(task.examples(split, n), key=lambda example: len(example.prompt))
    prompts = [task.encode(example, tokenizer) for example in examples]
    correct = unanswered = done = 0
    for batch in batches_of(prompts, batch_size, device=model.device, pad=tokenizer.pad_token_id):
        rows = run_request(Models(model, model), DecodingMode(), batch, task.max_new_tokens).rows
        responses = tokenizer.batch_decode(rows, skip_special_tokens=True)
        for example, response in zip(examples[done : done + len(batch)], responses, strict=True):
            answer = task.answer(example, response)
            correct += task.equivalent(answer, example.answer)
            unanswered += answer is None
        done += len(batch)
        on_batch(done)
    return Accuracy(len(examples), correct, unanswered)
