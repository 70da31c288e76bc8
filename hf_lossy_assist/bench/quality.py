"""How often each contender's answers are right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..tasks import Example, Task
from .contenders import Contender, Models
from .trials import Batch, Workload, attempt


@dataclass(frozen=True)
class Quality:
    """Right answers of one contender.

    Attributes
    ----------
    label
        The contender.
    problems, correct
        How many problems were put, and how many answered right.
    low, high
        95 % interval of the accuracy (Wilson).
    difference, margin
        Accuracy less that of the reference, and half the width of its 95 % interval, from the differences problem by
        problem; None of the reference itself.
    reference
        With whom it is compared.
    """

    label: str
    problems: int
    correct: int
    low: float
    high: float
    difference: float | None = None
    margin: float | None = None
    reference: str | None = None

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.problems


def answers(models: Models, contender: Contender, batches: Sequence[Batch], workload: Workload) -> Iterator[list[int]]:
    """Let a contender answer every prompt, without measuring anything."""
    for batch in batches:
        for row in attempt(models, contender, batch, workload).rows:
            yield row.tolist()


def judge(
    tokenizer: PreTrainedTokenizerBase, task: Task, examples: Sequence[Example], texts: Sequence[list[int]]
) -> list[bool]:
    """Tell which responses, as token ids, answer their example right."""
    responses = tokenizer.batch_decode(texts, skip_special_tokens=True)
    return [task.correct(example, response) for example, response in zip(examples, responses, strict=True)]


def qualities(right: dict[str, list[bool]], reference: str | None = None) -> list[Quality]:
    """Sum up who was right.

    Parameters
    ----------
    right
        For every contender, whether each of the same problems was answered right.
    reference
        With whom all others are compared.

    Examples
    --------
    >>> lossless, other = qualities({"lossless": [True, True, False, True], "other": [True] * 4}, "lossless")
    >>> lossless.accuracy, other.difference
    (0.75, 0.25)
    """
    from scipy.stats import binomtest

    result = []
    for label, marks in right.items():
        interval = binomtest(sum(marks), len(marks)).proportion_ci(method="wilson")
        difference = margin = None
        if reference in right and label != reference:
            apart = [a - b for a, b in zip(marks, right[reference], strict=True)]
            difference = sum(apart) / len(apart)
            variance = sum((x - difference) ** 2 for x in apart) / max(1, len(apart) - 1)
            margin = 1.96 * math.sqrt(variance / len(apart))
        result.append(
            Quality(
                label=label,
                problems=len(marks),
                correct=sum(marks),
                low=float(interval.low),
                high=float(interval.high),
                difference=difference,
                margin=margin,
                reference=reference if difference is not None else None,
            )
        )
    return result
