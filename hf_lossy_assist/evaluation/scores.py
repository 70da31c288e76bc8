"""What the answers of each mode add up to: scores, lengths and speeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any

from .answers import Answer, by_mode
from .modes import DecodingMode
from .quality import Interval, interval, paired_interval, times_as_fast


@dataclass(frozen=True)
class Speed:
    """How fast calls of a mode were beside the baselines."""

    times: Mapping[str, Interval]  # tokens per second over those of a baseline's fastest mode, by the baseline's name
    calls: int  # of ``generate()``

    @property
    def few(self) -> bool:
        """Whether calls are too few for an interval that tells anything: with three, its ends are 4.3 errors off."""
        return self.calls < 4


@dataclass(frozen=True)
class ModeScore:
    """The results of one mode on all problems that it answered."""

    label: str
    score: float | None  # the mean; None if answers were only timed
    n: int  # problems
    difference: float  # the score less the reference's on the same problems; 0 for the reference itself
    low: float  # of the difference's 95 % interval
    high: float
    mean_accepted: float  # drafted tokens kept per round; 0 without rounds, like those of the draft alone
    tokens_per_round: float
    tokens_per_second: float | None  # None, like all that depends on it, if some answers were not timed
    target_calls_per_100_tokens: float  # a round is one call
    same_texts: int  # texts equal to the reference's
    tokens_per_answer: float
    tokens_apart: Interval | None  # from the reference's on the same problems; None for the reference itself
    seconds_per_answer: float | None
    cut_off: float  # the share of answers that ended at the limit of their length
    speed: Speed | None = None
    lossless: bool = False  # whether a lossy rule decides as the lossless one here

    @property
    def entry(self) -> dict[str, Any]:
        """The mode's entry in ``summary.json``."""
        return {name: value for name, value in asdict(self).items() if name != "label"}


def baselines_of(modes: Iterable[DecodingMode]) -> dict[str, list[str]]:
    """Return the labels of the modes that speeds are compared with: of this process, and by the target's own law."""
    own = [mode for mode in modes if mode.engine is None and mode.answers == "target"]
    return {
        "plain": [mode.label for mode in own if mode.is_alone],
        "stock": [mode.label for mode in own if mode.is_stock],
        "lossless": [mode.label for mode in own if mode.rule == "lossless"],
    }


def fastest_of(paces: Mapping[str, float], baselines: Mapping[str, Collection[str]], reference: str) -> dict[str, str]:
    """Return the fastest mode of each baseline, of those with a pace; where there is none, the reference is one."""
    known = {name: [label for label in labels if label in paces] for name, labels in baselines.items()}
    found = {name: max(labels, key=paces.__getitem__) for name, labels in known.items() if labels}
    return found or ({"reference": reference} if reference in paces else {})


_Calls = Mapping[int, tuple[float, float]]
"""Tokens and seconds of calls, by their number."""


def mode_scores(
    answers: Iterable[Answer],
    reference: str,
    baselines: Mapping[str, Collection[str]] = MappingProxyType({}),
    batch_size: int = 1,
) -> list[ModeScore]:
    """Sum up every mode, and compare it with the mode ``reference`` on the problems that both have answered.

    Parameters
    ----------
    baselines
        The labels of :func:`baselines_of`. Of each baseline the fastest mode counts for :class:`Speed`. Where none is
        there, the reference is one.
    batch_size
        Problems of one call, whose time they share.
    """
    modes = by_mode(answers)
    seen = {
        label: _calls(own, batch_size)
        for label, own in modes.items()
        if all(answer.seconds is not None for answer in own.values())
    }
    fastest = fastest_of({label: _pace(calls) for label, calls in seen.items()}, baselines, reference)
    speeds = {
        label: Speed({name: _times(calls, seen[other]) for name, other in fastest.items()}, len(calls))
        for label, calls in seen.items()
    }
    others = modes.get(reference, {})
    return [_score(label, own, others, label == reference, speeds.get(label)) for label, own in modes.items()]


def _score(
    label: str, own: Mapping[int, Answer], others: Mapping[int, Answer], is_reference: bool, speed: Speed | None
) -> ModeScore:  # fmt: skip
    """Sum up one mode, and compare it with the reference's answers, ``others``; without a speed it was not timed."""
    both = [(own[i], others[i]) for i in sorted(own.keys() & others.keys())]
    compared = [] if is_reference else both
    tokens, rounds, accepted, cut = (
        sum(getattr(answer, name) for answer in own.values()) for name in ("tokens", "rounds", "accepted", "cut")
    )
    scored = all(answer.score is not None for answer in own.values())
    apart = (0.0, 0.0, 0.0)
    if compared and scored:
        apart = paired_interval([a.score for a, _ in compared], [b.score for _, b in compared])
    seconds = None if speed is None else sum(answer.seconds for answer in own.values())
    return ModeScore(
        label, fmean(answer.score for answer in own.values()) if scored else None, len(own), *apart,
        *((accepted / rounds, tokens / rounds) if rounds else (0.0, 0.0)),
        None if seconds is None else tokens / seconds, 100 * rounds / tokens if tokens else 0.0,
        sum(a.text == b.text for a, b in both), tokens / len(own),
        interval([a.tokens - b.tokens for a, b in compared]) if compared else None,
        None if seconds is None else seconds / len(own), cut / len(own), speed,
    )  # fmt: skip


def _calls(answers: Mapping[int, Answer], size: int) -> _Calls:
    """Put the answers of a call together."""
    sums: dict[int, tuple[float, float]] = {}
    for i, answer in answers.items():
        tokens, seconds = sums.get(i // size, (0, 0.0))
        sums[i // size] = tokens + answer.tokens, seconds + answer.seconds
    return sums


def _pace(calls: _Calls) -> float:
    return sum(tokens for tokens, _ in calls.values()) / max(1e-12, sum(seconds for _, seconds in calls.values()))


def _times(own: _Calls, other: _Calls) -> Interval | None:
    """Return the ratio of the speeds of two modes on the calls of both."""
    common = sorted(own.keys() & other.keys())
    return times_as_fast([own[i] for i in common], [other[i] for i in common]) if common else None
