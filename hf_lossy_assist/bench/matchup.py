"""A comparison in which everybody answers a prompt before anybody answers the next, so that noise hits all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import LossyValueError
from ..stats import LossyStats
from .contenders import Contender, Models
from .trials import Batch, Instruments, Split, Trial, Workload, attempt


@dataclass(frozen=True)
class Counts:
    """What a run's statistics count, of all rows together.

    Attributes
    ----------
    rounds, drafted, accepted
        Rounds, tokens drafted, and tokens kept of them.
    draft_calls, target_calls
        Forward passes.
    rates
        The share of the drafted tokens that was kept, of every row that drafted any.
    """

    rounds: int
    drafted: int
    accepted: int
    draft_calls: int
    target_calls: int
    rates: tuple[float, ...] = ()

    @classmethod
    def of(cls, stats: LossyStats) -> Counts:
        """Take them from the statistics."""
        rows = stats.rows or (stats,)
        return cls(
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            draft_calls=stats.draft_calls,
            target_calls=stats.target_calls,
            rates=tuple(row.acceptance_rate for row in rows if row.drafted),
        )


@dataclass(frozen=True)
class Request:
    """One contender's answer to one batch, as it is written to disk.

    Attributes
    ----------
    place
        How many requests came before it.
    repeat, batch
        Which time which batch was put; the metered repeat is the last, and its speed does not count.
    label
        The contender.
    seconds, tokens
        How long ``generate()`` took, and what it generated, of all rows.
    counts
        Of a run with statistics.
    joules
        What the GPU used, where it can say.
    peak_memory, split
        Of a metered request: bytes, and where the time went.
    """

    place: int
    repeat: int
    batch: int
    label: str
    seconds: float
    tokens: int
    counts: Counts | None = None
    joules: float | None = None
    peak_memory: int | None = None
    split: Split | None = None

    @property
    def is_metered(self) -> bool:
        """Whether it shows where the time goes instead of how fast it is."""
        return self.peak_memory is not None


def play(
    models: Models,
    contenders: Sequence[Contender],
    batches: Sequence[Batch],
    workload: Workload,
    *,
    repeats: int = 3,
    instruments: Instruments = Instruments(),  # noqa: B008
) -> Iterator[tuple[Request, Trial]]:
    """Put every batch to every contender ``repeats`` times, and once more to see where the time goes.

    Nobody answers two batches in a row, and everybody is first equally often.

    Parameters
    ----------
    models, contenders, batches, workload
        Who answers what.
    repeats
        How often the speed is measured.
    instruments
        What measures.
    """
    place = 0
    for repeat in range(repeats + 1):
        for b, batch in enumerate(batches):
            for contender in rotated(contenders, repeat + b):
                trial = attempt(models, contender, batch, workload, instruments, meter=repeat == repeats)
                yield _request(place, repeat, b, contender, trial), trial
                place += 1


def rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    """Return the contenders in turn, another one first."""
    by %= len(contenders)
    return [*contenders[by:], *contenders[:by]]


def warm_up(
    models: Models, contenders: Sequence[Contender], batch: Batch, workload: Workload, *, strict: bool
) -> tuple[list[Contender], list[str]]:
    """Let everybody answer one batch that does not count; return who can, and why others can't.

    Parameters
    ----------
    models, contenders, batch, workload
        As in :func:`play`.
    strict
        Whether one who can't is an error.

    Raises
    ------
    LossyValueError
        When nobody but the target alone can take part, or, where it is strict, when anybody can't.
    """
    able, notes = [], []
    for contender in contenders:
        try:
            attempt(models, contender, batch, workload)
        except ValueError as error:  # of this package, or of transformers' own checks
            reason = f"{contender.label}: {str(error).strip().splitlines()[0]}"
            if strict:
                raise LossyValueError(f"`--modes` has one that can't run here, {reason}") from error
            notes.append(f"left out, {reason}")
        else:
            able.append(contender)
    if notes and len(able) < 2:
        raise LossyValueError(f"`--modes` has nobody to compare; {'; '.join(notes)}")
    return able, notes


def _request(place: int, repeat: int, batch: int, contender: Contender, trial: Trial) -> Request:
    return Request(
        place=place,
        repeat=repeat,
        batch=batch,
        label=contender.label,
        seconds=trial.seconds,
        tokens=trial.tokens,
        counts=trial.stats and Counts.of(trial.stats),
        joules=trial.joules,
        peak_memory=trial.peak_memory,
        split=trial.split,
    )
