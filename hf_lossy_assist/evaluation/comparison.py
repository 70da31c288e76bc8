"""A comparison in which all modes answer a prompt before any answers the next, so that noise hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LossyValueError
from ..stats import LossyStats
from .modes import DecodingMode, Models
from .requests import Instruments, PromptBatch, Response, TimeSplit, run_request


@dataclass(frozen=True)
class RunCounts:
    """The counts of a run's statistics, of all rows together."""

    rounds: int
    drafted: int  # tokens
    accepted: int  # drafted tokens that were kept
    draft_calls: int
    target_calls: int
    rates: tuple[float, ...] = ()  # the share of the drafted tokens that was kept, of every row that drafted any

    @classmethod
    def of(cls, stats: LossyStats) -> RunCounts:
        """Return the counts of some statistics."""
        rates = tuple(row.acceptance_rate for row in stats.rows or (stats,) if row.drafted)
        return cls(stats.rounds, stats.drafted, stats.accepted, stats.draft_calls, stats.target_calls, rates)


@dataclass(frozen=True)
class RequestRecord:
    """One mode's answer to one batch, as it is written to disk."""

    place: int  # how many requests came before it
    # The metered repeat is the last, and its speed does not count.
    repeat: int
    batch: int
    label: str
    seconds: float  # of the call of ``generate()``
    tokens: int  # generated, in all rows
    counts: RunCounts | None = None  # of a run with statistics
    joules: float | None = None  # what the GPU used, where it can say
    # Of a metered request: bytes, and where the time went.
    peak_memory: int | None = None
    split: TimeSplit | None = None

    @property
    def is_metered(self) -> bool:
        """Whether it shows where the time goes instead of how fast it is."""
        return self.peak_memory is not None


def interleave(
    models: Models,
    modes: Sequence[DecodingMode],
    batches: Sequence[PromptBatch],
    max_new_tokens: int = 100,
    *,
    repeats: int = 3,
    meter: bool = True,
    instruments: Instruments = Instruments(),  # noqa: B008
) -> Iterator[tuple[RequestRecord, Response]]:
    """Answer every batch in every mode, several times; yield the record of each answer, and the answer.

    No mode answers two batches in a row, and every mode is first equally often.

    ``repeats`` measure the speed; with ``meter``, one more shows where the time goes.
    """
    place = 0
    for repeat in range(repeats + meter):
        for b, batch in enumerate(batches):
            for mode in rotated(modes, repeat + b):
                got = run_request(models, mode, batch, max_new_tokens, instruments, meter=repeat == repeats)
                counts = got.stats and RunCounts.of(got.stats)
                measured = (got.seconds, got.tokens, counts, got.joules, got.peak_memory, got.split)
                yield RequestRecord(place, repeat, b, mode.label, *measured), got
                place += 1


def rotated(modes: Sequence[DecodingMode], by: int) -> list[DecodingMode]:
    """Return the modes in their order, beginning with another one."""
    by %= len(modes)
    return [*modes[by:], *modes[:by]]


def run_comparison(
    models: Models,
    modes: Sequence[DecodingMode],
    batches: Sequence[PromptBatch],
    max_new_tokens: int = 100,
    *,
    repeats: int = 3,
    meter: bool = True,
    instruments: Instruments = Instruments(),  # noqa: B008
    track: Callable[..., Iterable[Any]] = lambda values, **shown: values,
    write: Callable[[Any], None] = lambda row: None,
) -> tuple[list[RequestRecord], dict[str, list[Response]]]:
    """Compare modes as :func:`interleave` does; return all records, and by label the first repeat's responses.

    ``write`` is given every record as it comes; ``track`` passes them on and may show how far it is, as that of rich's
    bars does.
    """
    records: list[RequestRecord] = []
    responses: dict[str, list[Response]] = {mode.label: [] for mode in modes}
    course = interleave(models, modes, batches, max_new_tokens, repeats=repeats, meter=meter, instruments=instruments)
    for record, response in track(course, total=len(modes) * len(batches) * (repeats + meter), description="comparing"):
        write(record)
        records.append(record)
        if record.repeat == 0:
            responses[record.label].append(response)
    return records, responses


def texts_of(responses: Iterable[Response]) -> list[list[int]]:
    """Return what was generated for every prompt, as token ids."""
    return [row.tolist() for response in responses for row in response.rows]


def warm_up(
    models: Models, modes: Sequence[DecodingMode], batch: PromptBatch, max_new_tokens: int = 100, *, strict: bool
) -> tuple[list[DecodingMode], list[str]]:
    """Answer one batch in every mode without recording it; return the modes that can, and why others can't.

    Where it is ``strict``, a mode that can't is an error.

    Raises
    ------
    LossyValueError
        When nothing but the target alone can take part, or, where it is strict, when any mode can't.
    """
    able, notes = [], []
    for mode in modes:
        try:
            run_request(models, mode, batch, max_new_tokens)
        except ValueError as error:  # of this package, or of transformers' own checks
            reason = f"{mode.label}: {str(error).strip().splitlines()[0]}"
            if strict:
                raise LossyValueError(f"`--modes` has one that can't run here, {reason}") from error
            notes.append(f"left out, {reason}")
        else:
            able.append(mode)
    if notes and len(able) < 2:
        raise LossyValueError(f"`--modes` has nobody to compare; {'; '.join(notes)}")
    return able, notes
