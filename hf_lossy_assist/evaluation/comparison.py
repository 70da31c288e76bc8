"""A comparison: all modes answer a prompt before any answers the next, so noise affects all alike; and its summary."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LossyValueError
from .modes import TARGET_ALONE, DecodingMode, Models
from .quality import Interval, times_as_fast
from .requests import Instruments, PromptBatch, Response, RunCounts, TimeSplit, run_request

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
) -> tuple[list[RequestRecord], dict[str, list[Response]]]:
    """Answer every batch in every mode, several times; return all records, and by label the first repeat's responses.

    All modes answer a batch before any answers the next, and take turns in going first. ``repeats`` measure speed; one
    more, of the first batches, shows where the time goes in this process. ``write`` receives every record at once;
    ``track`` may show progress, like that of rich's bars.
    """
    records: list[RequestRecord] = []
    responses: dict[str, list[Response]] = {mode.label: [] for mode in modes}
    turns = [
        (repeat, b, mode)
        for repeat in range(repeats + 1)
        for b in range(len(batches))
        for mode in rotated(modes, repeat + b)
        if repeat < repeats or (mode.engine is None and b < METERED)
    ]
    for repeat, b, mode in track(turns, total=len(turns), description="comparing"):
        got = run_request(models, mode, batches[b], max_new_tokens, instruments, meter=repeat == repeats)
        measured = (got.seconds, got.tokens, got.counts, got.joules, got.peak_memory, got.split)
        records.append(RequestRecord(len(records), repeat, b, mode.label, *measured))
        write(records[-1])
        if repeat == 0:
            responses[mode.label].append(got)
    return records, responses


def texts_of(responses: Iterable[Response]) -> list[list[int]]:
    """Return the generated token ids of every prompt."""
    return [row.tolist() for response in responses for row in response.rows]


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
    texts: Mapping[str, Sequence[list[int]]] | None = None,
    rows: int = 1,
) -> list[ModeSummary]:
    """Sum up a comparison, one row per mode.

    ``texts`` are every mode's greedy answers, or None when sampling; ``rows`` is the batch size.
    """
    alone = None if texts is None else texts.get(TARGET_ALONE)
    by_label = {mode.label: [r for r in records if r.label == mode.label] for mode in modes}
    answers = {label: _answers(own) for label, own in by_label.items()}
    result = []
    for mode in modes:
        own = by_label[mode.label]
        timed = [r for r in own if not r.is_metered]
        first, metered = [r for r in timed if r.repeat == 0], [r for r in own if r.is_metered]
        joules = [r.joules for r in timed if r.joules is not None]
        speed = _speeds(own)
        same = None
        if alone is not None:
            same = statistics.fmean(a == b for a, b in zip(texts[mode.label], alone, strict=True))
        result.append(
            ModeSummary(
                label=mode.label,
                config=mode.config,
                requests=len(first),
                tokens=sum(r.tokens for r in first),
                tokens_per_second=Spread(statistics.median(speed), min(speed), max(speed)),
                ratios={label: times_as_fast(answers[mode.label], other) for label, other in answers.items()},
                same_text=same,
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
