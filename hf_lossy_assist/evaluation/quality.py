"""Scores of answers by several measures, and of modes on the same problems; how well their differences are known."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..tasks import Example, Task
from ..tasks.plain_prompts import rouge_l
from .answers import Answer, by_mode


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
    half = t_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else 0.0
    return mean, mean - half, mean + half


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
    """Return how many times the tokens per second of others' answers are written, with a bootstrap over the answers.

    Answers are pairs of tokens and seconds, to the same prompts.

    Examples
    --------
    >>> times_as_fast([(10, 1.0), (30, 3.0)], [(20, 4.0), (20, 4.0)])
    (2.0, 2.0, 2.0)
    """
    sums = bootstrap_sums(np.array([own, other], dtype=float).swapaxes(0, 1))
    return middle(sums[:, 0, 0] * sums[:, 1, 1] / (sums[:, 0, 1] * sums[:, 1, 0]))


@functools.cache
def t_quantile(freedom: int, confidence: float = 0.95) -> float:
    """Return the t with P(\\|T\\| ≤ t) = ``confidence`` for ``freedom`` degrees of freedom.

    Examples
    --------
    >>> round(t_quantile(1), 4), round(t_quantile(30), 4)
    (12.7062, 2.0423)
    """
    low, high = 0.0, math.pi / 2
    while low < (angle := (low + high) / 2) < high:
        low, high = (angle, high) if _within(angle, freedom) < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return P(\\|T\\| ≤ √freedom · tan(angle)): the finite sums 26.7.3 and 26.7.4 of Abramowitz and Stegun."""
    odd, total, squared = freedom % 2, 0.0, math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    for factor in range(2 + odd, freedom + 1, 2):
        total += term
        term *= squared * (factor - 1) / factor
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


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


@dataclass(frozen=True)
class ModeScore:
    """The results of one mode on all problems that it answered."""

    label: str
    score: float  # the mean
    n: int  # problems
    difference: float  # the score less the reference's on the same problems; 0 for the reference itself
    low: float  # of the difference's 95 % interval
    high: float
    mean_accepted: float  # drafted tokens kept per round; 0 without rounds, like those of the draft alone
    tokens_per_round: float
    tokens_per_second: float | None  # None, like the seconds, if some answers were not timed
    # Older files do not have these.
    target_calls_per_100_tokens: float | None = None  # a round is one call
    same_texts: int | None = None  # texts equal to the reference's
    tokens_per_answer: Mean | None = None
    seconds_per_answer: Mean | None = None
    cut_off: float | None = None  # the share of answers that ended at the limit of their length
    peak_memory: int | None = None  # bytes, the most of all calls
    # By what rounds cost on this machine, one text at a time.
    predicted_seconds: Mean | None = None  # of an answer
    times_lossless: Interval | None = None  # tokens per second over those of the fastest lossless setting

    @property
    def entry(self) -> dict[str, Any]:
        """The mode's entry in ``summary.json``."""
        return {name: value for name, value in asdict(self).items() if name != "label"}


def mode_scores(
    answers: Iterable[Answer],
    reference: str,
    predicted: Mapping[str, Mapping[int, float]] = MappingProxyType({}),
    lossless: Collection[str] = (),
) -> list[ModeScore]:
    """Sum up every mode, and compare it with the mode ``reference`` on the problems that both have answered.

    ``predicted`` has seconds by mode and problem, where they are known. Speeds are compared with that of the
    ``lossless`` mode whose predicted answers take the least time.
    """
    modes = by_mode(answers)
    others = modes.get(reference, {})
    predicted = {
        label: {i: seconds for i, seconds in predicted.get(label, {}).items() if i in own}
        for label, own in modes.items()
    }
    best = min(
        (label for label in lossless if predicted.get(label)),
        key=lambda label: fmean(predicted[label].values()), default=None,
    )  # fmt: skip
    rows = []
    for label, own in modes.items():
        both = [(own[i], others[i]) for i in sorted(own.keys() & others.keys())]
        compared = [] if label == reference else both
        tokens, rounds, accepted, score, cut = (
            sum(getattr(answer, name) for answer in own.values())
            for name in ("tokens", "rounds", "accepted", "score", "cut")
        )
        apart = (0.0, 0.0, 0.0)
        if compared:
            apart = paired_interval([a.score for a, _ in compared], [b.score for _, b in compared])
        lengths = _mean("tokens", own.values(), compared)
        timed = [pair for pair in compared if None not in (pair[0].seconds, pair[1].seconds)]
        untimed = any(answer.seconds is None for answer in own.values())
        times = None if untimed else _mean("seconds", own.values(), timed)
        kept = (accepted / rounds, tokens / rounds) if rounds else (0.0, 0.0)
        calls = 100 * rounds / tokens if tokens else 0.0
        same = sum(a.text == b.text for a, b in both)
        n, speed = len(own), None if times is None else tokens / (len(own) * times.mean)
        memory = max((answer.memory for answer in own.values() if answer.memory is not None), default=None)
        rows.append(
            ModeScore(
                label, score / n, n, *apart, *kept, speed, calls, same, lengths, times, cut / n, memory,
                _predicted(predicted[label], predicted.get(reference, {}), alone=label == reference),
                None if best is None else _times(modes, predicted, label, best),
            )
        )  # fmt: skip
    return rows


def _predicted(own: Mapping[int, float], others: Mapping[int, float], *, alone: bool) -> Mean | None:
    common = [] if alone else sorted(own.keys() & others.keys())
    return Mean.of([*own.values()], [(own[i], others[i]) for i in common]) if own else None


def _times(
    modes: Mapping[str, Mapping[int, Answer]], predicted: Mapping[str, Mapping[int, float]], label: str, best: str
) -> Interval | None:
    """Return a mode's predicted speed over that of the fastest lossless setting, on the problems of both."""
    common = sorted(predicted[label].keys() & predicted[best].keys())
    sides = ([(modes[x][i].tokens, predicted[x][i]) for i in common] for x in (label, best))
    return times_as_fast(*sides) if common else None


def _mean(name: str, own: Collection[Answer], compared: Sequence[tuple[Answer, Answer]]) -> Mean:
    return Mean.of(
        [getattr(answer, name) for answer in own], [(getattr(a, name), getattr(b, name)) for a, b in compared]
    )
