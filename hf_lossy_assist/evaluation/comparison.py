"""A comparison in which all modes answer a prompt before any answers the next, so noise affects all modes alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LossyValueError
from .modes import DecodingMode, Models
from .requests import Instruments, PromptBatch, Response, RunCounts, TimeSplit, run_request


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
    more shows where the time goes in this process. ``write`` receives every record at once; ``track`` may show
    progress, like that of rich's bars.
    """
    records: list[RequestRecord] = []
    responses: dict[str, list[Response]] = {mode.label: [] for mode in modes}
    turns = [
        (repeat, b, mode)
        for repeat in range(repeats + 1)
        for b in range(len(batches))
        for mode in rotated(modes, repeat + b)
        if repeat < repeats or mode.engine is None
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
    """Return what was generated for every prompt, as token ids."""
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
