"""One contender's answer to one batch of prompts, measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..stats import LossyStats
from .contenders import Contender, Models
from .meters import Clock, Forwards, metered, synchronizer
from .resources import PeakMemory, peak_memory
from .runs import Setting, until_end


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts that are answered together.

    Attributes
    ----------
    ids, mask
        ``(B, L)`` token ids, padded on the left, and which of them are prompt.
    first
        Index of the first prompt.
    """

    ids: Tensor
    mask: Tensor
    first: int

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Workload:
    """What everybody is asked for.

    Attributes
    ----------
    max_new_tokens
        The longest response.
    temperature
        Tokens are drawn at this temperature; None decodes greedily.
    seed
        Batch ``i`` is answered with ``seed + i``.
    """

    max_new_tokens: int = 100
    temperature: float | None = None
    seed: int = 0

    @property
    def do_sample(self) -> bool:
        return self.temperature is not None


@dataclass(frozen=True)
class Split:
    """Where the time of one call went, in seconds.

    Attributes
    ----------
    drafting, verifying
        Forward passes of the draft and of the target: decoder and LM head.
    deciding
        What the rule and fetching its decision took, as the run's statistics say; None where there are none, or
        where another clock is read.
    rest
        Everything else.
    draft_calls, target_calls
        How many passes.
    draft_call, target_call
        The median pass.
    first_token
        From the start until the target's first pass was over.
    """

    drafting: float
    verifying: float
    deciding: float | None
    rest: float
    draft_calls: int
    target_calls: int
    draft_call: float | None
    target_call: float | None
    first_token: float | None


@dataclass(frozen=True, eq=False)
class Trial:
    """One call of ``generate()``.

    Attributes
    ----------
    rows
        What was generated for every prompt ``(n,)``, EOS included.
    seconds
        How long the call took.
    stats
        The run's statistics, where it has any: of all rows together.
    split, peak_memory
        Of a metered call: where its time went, and the most memory it used, in bytes.
    joules
        What the GPU used, where it can say.
    """

    rows: Sequence[Tensor]
    seconds: float
    stats: LossyStats | None
    split: Split | None = None
    peak_memory: int | None = None
    joules: float | None = None

    @property
    def tokens(self) -> int:
        """Generated tokens of all rows."""
        return sum(len(row) for row in self.rows)


@dataclass(frozen=True)
class Instruments:
    """What measures.

    Attributes
    ----------
    clock
        Returns seconds.
    energy
        Returns the joules used so far, where something counts them.
    """

    clock: Clock = time.perf_counter
    energy: Callable[[], float] | None = None


def attempt(
    models: Models,
    contender: Contender,
    batch: Batch,
    workload: Workload,
    instruments: Instruments = Instruments(),
    *,
    meter: bool = False,
) -> Trial:
    """Let one contender answer one batch.

    Parameters
    ----------
    models, contender, batch, workload
        Who answers what, and how.
    instruments
        What measures.
    meter
        Also find out where the time goes. On a GPU that means waiting for the device at every pass, so such a call
        is slower than others.
    """
    clock, energy = instruments.clock, instruments.energy
    synchronize = synchronizer(models.target.device)
    arguments = {
        "input_ids": batch.ids,
        "attention_mask": batch.mask,
        "max_new_tokens": workload.max_new_tokens,
        "pad_token_id": models.target.generation_config.pad_token_id or 0,
        **Setting(temperature=workload.temperature).keywords(),
        **contender.keywords(models, workload.seed + batch.first),
    }
    with ExitStack() as stack:
        stack.enter_context(contender.ready(models))
        watch = stack.enter_context(_watching(models, synchronize, clock)) if meter else None
        torch.manual_seed(workload.seed + batch.first)
        synchronize()
        joules = energy() if energy else 0.0
        started = clock()
        output = models.target.generate(**arguments)
        synchronize()
        seconds = clock() - started
        joules = energy() - joules if energy else None
        peak = watch and watch.memory.peak()
    stats = getattr(output, "lossy_stats", None)
    # The statistics look at the wall's clock.
    deciding = stats.seconds.get("deciding") if stats is not None and clock is time.perf_counter else None
    width = batch.ids.shape[1]
    return Trial(
        rows=[until_end(row[width:], models.target) for row in output.sequences],
        seconds=seconds,
        stats=stats,
        split=watch and _split(watch, started, seconds, deciding),
        peak_memory=peak,
        joules=joules,
    )


@dataclass(frozen=True, eq=False)
class _Watch:
    """What is watched during a metered call."""

    target: Forwards
    draft: Forwards
    memory: PeakMemory


@contextmanager
def _watching(models: Models, synchronize: Callable[[], None], clock: Clock) -> Iterator[_Watch]:
    memory = peak_memory(models.target.device)
    memory.reset()
    with metered(models.target, synchronize, clock) as target, metered(models.draft, synchronize, clock) as draft:
        yield _Watch(target, draft, memory)


def _split(watch: _Watch, started: float, seconds: float, deciding: float | None) -> Split | None:
    target, draft = watch.target, watch.draft
    if not target.calls:
        return None  # a compiled pass does not call its modules
    return Split(
        drafting=draft.seconds,
        verifying=target.seconds,
        deciding=deciding,
        rest=seconds - draft.seconds - target.seconds - (deciding or 0.0),
        draft_calls=len(draft.calls),
        target_calls=len(target.calls),
        draft_call=_median(draft),
        target_call=_median(target),
        first_token=target.first_end - started,
    )


def _median(forwards: Forwards) -> float | None:
    return statistics.median(forwards.calls) if forwards.calls else None
