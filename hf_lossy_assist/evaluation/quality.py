"""Scores of answers by several measures, and how well means, differences and ratios are known."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..tasks import Example, Task
from ..tasks.plain_prompts import rouge_l
from .answers import Answer


@dataclass(frozen=True, eq=False)
class Measurable:
    """An answer with everything that a measure may read."""

    task: Task
    example: Example
    target: PreTrainedModel
    prompt: Tensor  # token ids, ``(L,)``
    tokens: Tensor  # generated token ids, ``(n,)``
    text: str
    own: str  # the reference mode's text


@torch.inference_mode()
def likelihood(answer: Measurable) -> float:
    """Return the geometric mean of p over the answer's tokens; p is the target's, without any warper."""
    ids = torch.cat([answer.prompt, answer.tokens]).to(answer.target.device)
    start = len(answer.prompt)
    logits = answer.target(input_ids=ids[None, :-1], use_cache=False).logits[0, start - 1 :].float()
    log_p = logits.log_softmax(-1).gather(-1, ids[start:, None])
    return log_p.double().mean().exp().item()


MEASURES: Mapping[str, Callable[[Measurable], float]] = {
    "task": lambda answer: answer.task.score(answer.example, answer.text, answer.own),
    "rouge": lambda answer: rouge_l(answer.text, answer.own),
    "likelihood": likelihood,
}
"""Measures from 0 to 1 by name: the task's, ROUGE-L against the reference mode's text, and :func:`likelihood`."""


def paired_interval(scores: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of two lists of scores on the same problems, and the ends of its 95 % interval.

    This is the paired t-test's interval with two more differences, +s and -s, where s² = Σ d⁴ / Σ d² over the
    differences d. For right and wrong answers s is 1, as it is where no scores differ, and this is the adjusted
    interval of Bonett and Price (2012). Where few answers differ, or a few differ much, the t-test's own and the
    bootstrap's are too short; this one is wrong less often. Without any difference on n problems it is about ± 2.8 / n,
    and with the first small one it is shorter. Scores have to lie in [0, 1].

    Examples
    --------
    >>> [round(value, 3) for value in paired_interval([1, 1, 0.5, 1], [1, 0.5, 0.5, 1])]
    [0.125, -0.312, 0.478]
    >>> [round(value, 3) for value in paired_interval([1.0] * 1000, [1.0] * 1000)]
    [0.0, -0.003, 0.003]
    """
    outside = [score for score in (*scores, *reference) if not 0 <= score <= 1]
    if outside:
        raise LossyValueError(f"a score has to be a number from 0 to 1, but one is {outside[0]!r}")
    apart = [a - b for a, b in zip(scores, reference, strict=True)]
    squares = sum(d**2 for d in apart)
    size = math.sqrt(sum(d**4 for d in apart) / squares) if squares else 1.0
    _, low, high = mean_interval([*apart, size, -size])
    return (sum(scores) - sum(reference)) / len(scores), max(-1.0, low), min(1.0, high)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean, and the ends of its 95 % interval: the t-test's, or without any length for a single value.

    Examples
    --------
    >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    mean, n = fmean(values), len(values)
    half = _t_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else 0.0
    return mean, mean - half, mean + half


@functools.cache
def _t_quantile(freedom: int) -> float:
    """Return the t with P(\\|T\\| ≤ t) = 0.95: the density of arctan(T / √freedom) is a power of the cosine."""
    angles = np.linspace(0, np.pi / 2, 200_001)
    middles = (angles[1:] + angles[:-1]) / 2
    shares = np.append(0.0, (np.cos(middles) ** (freedom - 1)).cumsum())
    return math.sqrt(freedom) * math.tan(np.interp(0.95, shares / shares[-1], angles))


DRAWS = 10_000
"""Of a bootstrap."""

Interval = tuple[float, float, float]
"""An estimate, and the ends of its 95 % interval."""


def bootstrap_sums(values: np.ndarray) -> np.ndarray:
    """Return the sums over the first axis, and then the sums over as many of its entries, drawn with replacement."""
    return np.concatenate([values.sum(0)[None], np.tensordot(_weights(len(values)), values, 1)])


@functools.lru_cache(1)
def _weights(n: int) -> np.ndarray:
    """Return how often each of ``n`` entries is drawn, ``(DRAWS, n)``."""
    drawn = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    return np.stack([np.bincount(one, minlength=n) for one in drawn])


def middle(values: np.ndarray) -> Interval:
    """Return the first value, which is the estimate, and the middle 95 % of the others."""
    return float(values[0]), *map(float, np.quantile(values[1:], (0.025, 0.975)))


def tokens_per_call(answers: Iterable[Answer]) -> Interval:
    """Return a mode's tokens per call of the target: its acceptance length, with a bootstrap over the answers."""
    sums = bootstrap_sums(np.array([(answer.tokens, max(1, answer.rounds)) for answer in answers], dtype=float))
    return middle(sums[:, 0] / sums[:, 1])


def times_as_fast(own: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> Interval:
    """Return the ratio of tokens per second, own over other, with a bootstrap over the answers.

    Answers are pairs of tokens and seconds, to the same prompts.

    Examples
    --------
    >>> times_as_fast([(10, 1.0), (30, 3.0)], [(20, 4.0), (20, 4.0)])
    (2.0, 2.0, 2.0)
    """
    sums = bootstrap_sums(np.array([own, other], dtype=float).swapaxes(0, 1))
    return middle(sums[:, 0, 0] * sums[:, 1, 1] / (sums[:, 0, 1] * sums[:, 1, 0]))


@dataclass(frozen=True)
class Mean:
    """The mean of a quantity of answers, and how far it is from the reference's on the same problems."""

    mean: float
    difference: float = 0.0
    low: float | None = None  # of the difference's 95 % interval: the paired t-test's; None for fewer than two problems
    high: float | None = None

    @classmethod
    def of(cls, own: Sequence[float], both: Sequence[tuple[float, float]]) -> Mean:
        """Return the mean of ``own`` values, compared on the pairs of own and reference values in ``both``."""
        mean, apart = sum(own) / len(own), [a - b for a, b in both]
        if len(apart) < 2 or len(set(apart)) == 1:  # without any spread, the interval has no length
            known = apart[0] if apart else 0.0
            return cls(mean, known, *((known, known) if len(apart) > 1 else ()))
        return cls(mean, *mean_interval(apart))
