"""Scores of answers by several measures, and how well means, differences and ratios are known."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import torch
from numpy.typing import ArrayLike
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

    This is the paired t-test's interval with two more differences, +1 and -1. For right and wrong answers it is the
    adjusted interval of Bonett and Price (2012). Scores have to lie in [0, 1], so no difference is larger than the two.
    They stand for losses that are too rare to be seen on n problems: without any difference, the interval is about
    ± 2.8 / n.

    Examples
    --------
    >>> [round(value, 3) for value in paired_interval([1, 1, 0.5, 1], [1, 0.5, 0.5, 1])]
    [0.125, -0.614, 0.781]
    >>> [round(value, 3) for value in paired_interval([1.0] * 1000, [1.0] * 1000)]
    [0.0, -0.003, 0.003]
    """
    outside = [score for score in (*scores, *reference) if not 0 <= score <= 1]
    if outside:
        raise LossyValueError(f"a score has to be a number from 0 to 1, but one is {outside[0]!r}")
    _, low, high = mean_interval([1.0, -1.0, *(a - b for a, b in zip(scores, reference, strict=True))])
    return (sum(scores) - sum(reference)) / len(scores), max(-1.0, low), min(1.0, high)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean, and the ends of its 95 % interval: the t-test's, or without any length for a single value.

    Examples
    --------
    >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    return around(fmean(values), Spread.of_mean(values))


@dataclass(frozen=True)
class Spread:
    """How far an estimate may be off: its variance, and the degrees of freedom with which that is known."""

    variance: float
    freedom: float = math.inf

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> Spread:
        """Return the spread of the mean of values; a single one shows none."""
        n = len(values)
        return cls(stdev(values) ** 2 / n, n - 1) if n > 1 else cls(0.0)

    @classmethod
    def of_sums(cls, values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> Spread:
        """Return the jackknife's spread of a smooth function of sums, as :func:`interval_of_sums` takes them."""
        n = len(values)
        return cls((n - 1) * float(np.var(of(values.sum(0) - values))), n - 1) if n > 1 else cls(0.0)


def around(estimate: float, *spreads: Spread) -> Interval:
    """Return an estimate with its 95 % interval, whose length holds independent spreads.

    Their variances add up. Student's t has the degrees of freedom of Welch and Satterthwaite.

    Examples
    --------
    >>> [round(end, 2) for end in around(1.0, Spread(0.0003), Spread(0.0001))]
    [1.0, 0.96, 1.04]
    """
    variance = sum(one.variance for one in spreads)
    shares = sum(one.variance**2 / one.freedom for one in spreads)
    freedom = variance**2 / shares if shares else 1e4
    half = _t_quantile(round(min(freedom, 1e4), 1)) * math.sqrt(variance) if variance else 0.0
    return estimate, estimate - half, estimate + half


@functools.cache
def _t_quantile(freedom: float) -> float:
    """Return the t with P(\\|T\\| ≤ t) = 0.95: the density of arctan(T / √freedom) is a power of the cosine."""
    angles = np.linspace(0, np.pi / 2, 200_001)
    middles = (angles[1:] + angles[:-1]) / 2
    shares = np.append(0.0, (np.cos(middles) ** (freedom - 1)).cumsum())
    return math.sqrt(freedom) * math.tan(np.interp(0.95, shares / shares[-1], angles))


Interval = tuple[float, float, float]
"""An estimate, and the ends of its 95 % interval."""


def interval_of_sums(values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Return a smooth function of the sums of ``values`` over n problems, and the ends of its 95 % interval.

    The interval is Student's t with n - 1 degrees of freedom, and with the jackknife's standard error: how much the
    function changes as each problem is left out. With six or twelve problems a bootstrap's is too short.

    Parameters
    ----------
    values
        One row a problem, ``(n, k)``.
    of
        Maps sums, ``(m, k)``, to ``(m,)``.

    Examples
    --------
    >>> values = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])
    >>> [round(end, 3) for end in interval_of_sums(values, lambda sums: sums[:, 0] / sums[:, 1])]
    [2.0, -0.484, 4.484]
    """
    return around(float(of(values.sum(0)[None])[0]), Spread.of_sums(values, of))


def ratio_interval(values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Return :func:`interval_of_sums` of a positive quantity, whose logarithm has the symmetric interval."""
    estimate, low, high = map(math.exp, interval_of_sums(values, lambda sums: np.log(of(sums))))
    return estimate, low, high


def tokens_per_call(answers: Iterable[Answer]) -> Interval:
    """Return a mode's tokens per call of the target, its acceptance length, as :func:`ratio_interval` over answers."""
    counts = np.array([(answer.tokens, max(1, answer.rounds)) for answer in answers], dtype=float)
    return ratio_interval(counts, lambda sums: sums[:, 0] / sums[:, 1])


def times_as_fast(own: ArrayLike, other: ArrayLike) -> Interval:
    """Return the ratio of tokens per second, own over other, as :func:`ratio_interval` over answers.

    Both are ``(n, 2)``: tokens and seconds of the answers to the same prompts.

    Examples
    --------
    >>> [round(end, 3) for end in times_as_fast([(10, 1.0), (30, 3.0)], [(20, 4.0), (20, 4.0)])]
    [2.0, 2.0, 2.0]
    """
    return ratio_interval(
        np.concatenate([own, other], 1, dtype=float),
        lambda sums: sums[:, 0] * sums[:, 3] / (sums[:, 1] * sums[:, 2]),
    )


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
