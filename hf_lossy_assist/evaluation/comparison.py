"""A comparison: all modes answer a prompt before any answers the next, so noise affects all alike; and its summary."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import LossyValueError
from .costs import Costs, answer_seconds
from .modes import TARGET_ALONE, DecodingMode, Models
from .quality import Interval, mean_interval, times_as_fast
from .requests import Instruments, PromptBatch, RunCounts, TimeSplit, run_request

LATENCY_QUANTILES = (0.5, 0.95, 0.99)
ACCEPTANCE_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
METERED = 8
"""So many batches, at most, are answered once more to see where the time goes."""


@dataclass(frozen=True)
class RequestRecord:
    """One mode's answer to one batch, as it is written to disk."""

    place: int  # how many requests came before it
    repeat: int  # the last one may be metered; its speed does not count
    batch: int
    label: str
    seconds: float  # of the call of ``generate()``
    tokens: int  # generated, in all rows
    counts: RunCounts | None = None  # if the run has statistics
    joules: float | None = None  # energy of the GPU, where it is counted
    peak_memory: int | None = None  # bytes; metered requests only
    split: TimeSplit | None = None  # metered requests only
    prompt: int | None = None  # tokens of each row, padding included
    # As in a :class:`~.requests.Response`, of the first repeat only.
    rows: Sequence[Sequence[int]] = ()
    work: Sequence[tuple[int, int, int]] = ()
    drafted: Sequence[int] | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RequestRecord:
        """Return a record that a file has."""
        kinds = {"counts": RunCounts, "split": TimeSplit}
        parts = {name: kind(**values[name]) for name, kind in kinds.items() if values[name] is not None}
        return cls(**{name: value for name, value in values.items() if name != "table"} | parts)

    @property
    def is_metered(self) -> bool:
        return self.peak_memory is not None


def rotated(modes: Sequence[DecodingMode], by: int) -> list[DecodingMode]:
    by %= len(modes)
    return [*modes[by:], *modes[:by]]


def run_comparison(
    models: Models,
    modes: Sequence[DecodingMode],
    batches: Sequence[PromptBatch],
    max_new_tokens: int = 100,
    *,
    repeats: int = 3,
    instruments: Instruments = Instruments(),  # noqa: B008
    track: Callable[..., Iterable[Any]] = lambda values, **shown: values,
    write: Callable[[Any], None] = lambda row: None,
    known: Sequence[RequestRecord] = (),
) -> list[RequestRecord]:
    """Answer every batch in every mode, several times; return the records of all requests.

    All modes answer a batch before any answers the next, and take turns in going first. ``repeats`` measure speed; one
    more, of the first batches, shows where the time goes in this process. ``write`` receives every record at once;
    ``track`` may show progress, like that of rich's bars. Requests that are ``known`` are not made again.
    """
    records = list(known)
    there = {(record.repeat, record.batch, record.label) for record in known}
    turns = [
        (repeat, b, mode)
        for repeat in range(repeats + 1)
        for b in range(len(batches))
        for mode in rotated(modes, repeat + b)
        if (repeat < repeats or (mode.engine is None and b < METERED)) and (repeat, b, mode.label) not in there
    ]
    for repeat, b, mode in track(turns, total=len(turns), description="comparing"):
        got = run_request(models, mode, batches[b], max_new_tokens, instruments, meter=repeat == repeats)
        said = ([row.tolist() for row in got.rows], got.work, got.drafted) if repeat == 0 else ()
        records.append(
            RequestRecord(
                len(records), repeat, b, mode.label, got.seconds, got.tokens, got.counts, got.joules, got.peak_memory,
                got.split, batches[b].ids.shape[1], *said,
            )
        )  # fmt: skip
        write(records[-1])
    return records


def first_answers(records: Iterable[RequestRecord], label: str) -> list[RequestRecord]:
    """Return a mode's requests of the first repeat, in the order of the batches."""
    own = (record for record in records if record.label == label and not (record.repeat or record.is_metered))
    return sorted(own, key=lambda record: record.batch)


def warm_up(
    models: Models, modes: Sequence[DecodingMode], batch: PromptBatch, max_new_tokens: int = 100, *, strict: bool
) -> tuple[list[DecodingMode], list[str]]:
    """Answer one batch in every mode without recording it; return the modes that work, and why others do not.

    It is an error if fewer than two of several modes work, or with ``strict`` if any does not.
    """
    able, notes = [], []
    for mode in modes:
        try:
            run_request(models, mode, batch, max_new_tokens)
        except ValueError as error:  # of this package, or of transformers' own checks
            reason = f"{mode.label}: {str(error).strip()}"
            if strict:
                raise LossyValueError(f"`modes` has a mode that can't run here, {reason}") from error
            notes.append(f"left out, {reason.splitlines()[0]}")
        else:
            able.append(mode)
    if notes and len(able) < 2:
        raise LossyValueError(f"`modes` has to have two modes that can run here; {'; '.join(notes)}")
    return able, notes


@dataclass(frozen=True)
class Spread:
    """The median over repeats, and the least and the largest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class PerRound:
    """The mean time of a round by its parts, in seconds."""

    drafting: float  # forwards of the draft: decoder and LM head
    verifying: float  # forwards of the target
    deciding: float | None  # the rule, where the run's statistics say
    rest: float

    @property
    def outside(self) -> float:
        """Time outside both models' forwards."""
        return self.rest + (self.deciding or 0.0)


@dataclass(frozen=True)
class ModeSummary:
    """The results of one mode in a comparison."""

    label: str
    config: Mapping[str, Any]
    requests: int  # answers in one repeat
    tokens: int  # generated in one repeat
    tokens_per_second: Spread  # generated tokens of all rows per second of ``generate()``, which reads prompts too
    # Speed over another mode's, by its label, with the interval of a bootstrap over the requests. A request's time is
    # the median of its repeats.
    ratios: Mapping[str, Interval]
    same_text: float | None  # share of answers equal to the target alone's, token for token
    seconds: Interval | None = None  # of a request: the mean, with a t-interval
    # What its own rounds would take by what rounds cost here: the same seconds, the same ratios, and these ratios over
    # those that were seen. Without costs, and in batches, they are not known.
    costs: Costs | None = None
    predicted: Interval | None = None
    predicted_ratios: Mapping[str, Interval] = field(default_factory=dict)
    over_seen: Mapping[str, Interval] = field(default_factory=dict)
    # Transformers' own loop has no statistics: each forward of the target counts as a round, and all of the round's
    # tokens but one as drafted.
    mean_accepted: float | None = None  # drafted tokens kept per round
    tokens_per_round: float | None = None
    draft_calls_per_round: float | None = None
    acceptance_rates: tuple[float, ...] | None = None  # kept share of drafts per request, at ACCEPTANCE_QUANTILES
    latencies: tuple[float, ...] = ()  # seconds per request, at LATENCY_QUANTILES
    first_token: float | None = None  # median seconds until the end of the target's first forward
    per_round: PerRound | None = None
    draft_call: float | None = None  # median seconds of a forward
    target_call: float | None = None
    peak_memory: int | None = None  # bytes
    joules_per_token: float | None = None


def summarise(
    modes: Sequence[DecodingMode],
    records: Sequence[RequestRecord],
    rows: int = 1,
    *,
    drawn: bool = False,
    costs: Mapping[str, Costs] = MappingProxyType({}),
) -> list[ModeSummary]:
    """Sum up a comparison, one row per mode.

    ``rows`` is the batch size. Texts that were ``drawn`` are not compared. ``costs`` of modes, by label, say what their
    answers would take.
    """
    said = {mode.label: [row for r in first_answers(records, mode.label) for row in r.rows] for mode in modes}
    alone = None if drawn else said.get(TARGET_ALONE)
    by_label = {mode.label: [r for r in records if r.label == mode.label] for mode in modes}
    answers = {label: _answers(own) for label, own in by_label.items()}
    predicted = {
        mode.label: [
            (r.tokens, answer_seconds(mode, costs[mode.label], r.prompt, r.tokens, r.work[0][0], r.drafted[0]))
            for r in first_answers(records, mode.label)
        ]
        for mode in modes
        if mode.label in costs and rows == 1
    }
    result = []
    for mode in modes:
        own = by_label[mode.label]
        timed = [r for r in own if not r.is_metered]
        first, metered = [r for r in timed if r.repeat == 0], [r for r in own if r.is_metered]
        joules = [r.joules for r in timed if r.joules is not None]
        speed = _speeds(own)
        same = None
        if alone:
            same = statistics.fmean(a == b for a, b in zip(said[mode.label], alone, strict=True))
        result.append(
            ModeSummary(
                label=mode.label,
                config=mode.config,
                requests=len(first),
                tokens=sum(r.tokens for r in first),
                tokens_per_second=Spread(statistics.median(speed), min(speed), max(speed)),
                ratios={label: times_as_fast(answers[mode.label], other) for label, other in answers.items()},
                same_text=same,
                seconds=mean_interval([seconds for _, seconds in answers[mode.label]]),
                **_predicted(mode.label, answers, predicted, costs),
                # Only a metered repeat shows the rounds of transformers' own loop, and the parts of a round's time.
                **_rounds(first if all(r.counts for r in first) else metered, rows),
                per_round=_per_round(metered, rows),
                latencies=_quantiles([r.seconds for r in timed], LATENCY_QUANTILES),
                first_token=_median(own, lambda split: split.first_token),
                draft_call=_median(own, lambda split: split.draft_call),
                target_call=_median(own, lambda split: split.target_call),
                peak_memory=max((r.peak_memory for r in own if r.is_metered), default=None),
                joules_per_token=sum(joules) / sum(r.tokens for r in timed) if joules else None,
            )
        )
    return result


_Answered = Mapping[str, Sequence[tuple[float, float]]]
"""Tokens and seconds of a mode's requests, by its label."""


def _predicted(label: str, seen: _Answered, predicted: _Answered, costs: Mapping[str, Costs]) -> dict[str, Any]:
    if label not in predicted:
        return {}
    # Both seconds of each request.
    pairs = {x: [(a, b) for (_, a), (_, b) in zip(seen[x], own, strict=True)] for x, own in predicted.items()}
    return {
        "costs": costs[label],
        "predicted": mean_interval([seconds for _, seconds in predicted[label]]),
        "predicted_ratios": {other: times_as_fast(predicted[label], predicted[other]) for other in predicted},
        "over_seen": {other: times_as_fast(pairs[label], pairs[other]) for other in predicted},
    }


def _rounds(records: Sequence[RequestRecord], rows: int) -> dict[str, Any]:
    """Return the fields of a summary that are about rounds; none if a record does not show them."""
    counts = [_counts(r, rows) for r in records]
    if not counts or None in counts:
        return {}
    # SPRINTER may finish a text without the target.
    passes, rounds = max(1, sum(c.target_calls for c in counts)), max(1, sum(c.rounds for c in counts))
    drafts = any(c.drafted for c in counts)
    rates = [rate for c in counts for rate in c.rates]
    return {
        "mean_accepted": sum(c.accepted for c in counts) / rounds if drafts else None,
        "tokens_per_round": sum(r.tokens for r in records) / rounds,
        "draft_calls_per_round": sum(c.draft_calls for c in counts) / passes,
        "acceptance_rates": _quantiles(rates, ACCEPTANCE_QUANTILES) if rates else None,
    }


def _counts(record: RequestRecord, rows: int) -> RunCounts | None:
    split = record.split
    if record.counts is not None or split is None:
        return record.counts
    rounds, drafted = rows * split.target_calls, rows * split.draft_calls
    accepted = max(0, record.tokens - rounds) if drafted else 0
    rates = (accepted / drafted,) if drafted else ()
    return RunCounts(rounds, drafted, accepted, split.draft_calls, split.target_calls, rates)


def _speeds(requests: Sequence[RequestRecord]) -> list[float]:
    repeats = sorted({r.repeat for r in requests if not r.is_metered})
    groups = ([r for r in requests if r.repeat == repeat] for repeat in repeats)
    return [sum(r.tokens for r in group) / sum(r.seconds for r in group) for group in groups]


def _answers(requests: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    """Return the tokens and the seconds of each batch: medians over the repeats."""
    batches: dict[int, list[RequestRecord]] = {}
    for request in requests:
        if not request.is_metered:
            batches.setdefault(request.batch, []).append(request)
    return [
        (statistics.median(r.tokens for r in own), statistics.median(r.seconds for r in own))
        for _, own in sorted(batches.items())
    ]


def _per_round(records: Sequence[RequestRecord], rows: int) -> PerRound | None:
    """Return the parts of a round's time, if every record shows them."""
    splits = [r.split for r in records if r.split is not None]
    if not splits or len(splits) < len(records):
        return None
    rounds = max(1, sum(_counts(r, rows).target_calls for r in records))
    decided = [s.deciding for s in splits if s.deciding is not None]
    return PerRound(
        drafting=sum(s.drafting for s in splits) / rounds,
        verifying=sum(s.verifying for s in splits) / rounds,
        deciding=sum(decided) / rounds if decided else None,
        rest=sum(s.rest for s in splits) / rounds,
    )


def _median(requests: Sequence[RequestRecord], value: Callable[[TimeSplit], float | None]) -> float | None:
    values = [value(r.split) for r in requests if r.split is not None]
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def _quantiles(values: Sequence[float], at: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(q) for q in np.quantile(values, at))
