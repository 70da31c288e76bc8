"""One measured call of ``generate()``: one decoding mode answers one batch of prompts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..stats import LossyStats
from .meters import Clock, ForwardTimes, metered, peak_memory, synchronizer
from .modes import DecodingMode, Models


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """Prompts that are answered together."""

    # ``(B, L)`` token ids, padded on the left, and which of them are prompt.
    ids: Tensor
    mask: Tensor
    seed: int = 0  # of everything that is drawn while they are answered

    def __len__(self) -> int:
        return len(self.ids)


def batches_of(
    prompts: Sequence[Sequence[int]],
    size: int = 1,
    *,
    device: torch.device | str = "cpu",
    pad: int | None = 0,
    length: int | None = None,
    seed: int = 0,
) -> list[PromptBatch]:
    """Put prompts, as token ids, into batches of ``size``, padded on the left.

    With a ``length``, every prompt is made so long: by its own beginning again, or by leaving out what follows the
    first token. The first prompt has the seed ``seed``, the next has the next one, and a batch has that of its first
    prompt.

    Examples
    --------
    >>> [batch.ids.tolist() for batch in batches_of([[1, 2, 3], [1, 4], [1]], 2)]
    [[[1, 2, 3], [0, 1, 4]], [[1]]]
    """
    if length is not None:
        prompts = [_resized(list(ids), length) for ids in prompts]
    batches = []
    for first in range(0, len(prompts), size):
        rows = prompts[first : first + size]
        width = max(map(len, rows))
        ids = [[pad or 0] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        batches.append(PromptBatch(torch.tensor(ids, device=device), torch.tensor(mask, device=device), seed + first))
    return batches


def _resized(ids: list[int], length: int) -> list[int]:
    begin, rest = ids[:1], ids[1:] or ids
    wanted = length - 1
    rest = rest * -(-wanted // len(rest))
    return begin + rest[len(rest) - wanted :]


@dataclass(frozen=True)
class TimeSplit:
    """The time of one call by its parts, in seconds."""

    # All forward passes of the draft and of the target, and below how many they are, and the median one.
    drafting: float
    verifying: float
    # What the rule and fetching its decision took, as the run's statistics say; None where there are none, or where
    # another clock is read.
    deciding: float | None
    rest: float
    draft_calls: int
    target_calls: int
    draft_call: float | None
    target_call: float | None
    first_token: float | None  # from the start until the target's first pass was over


@dataclass(frozen=True, eq=False)
class Response:
    """The answers of one call of ``generate()``, and its measurements."""

    rows: Sequence[Tensor]  # what was generated for every prompt ``(n,)``, EOS included
    seconds: float  # how long the call took
    stats: LossyStats | None  # the run's statistics, where it has any: of all rows together
    target_calls: int = 0  # where there are none
    joules: float | None = None  # what the GPU used, where something counts it
    # Of a metered call: the passes of ``"target"`` and ``"draft"``, where its time went, and the most memory it used,
    # in bytes.
    forwards: Mapping[str, ForwardTimes] | None = None
    split: TimeSplit | None = None
    peak_memory: int | None = None

    @property
    def tokens(self) -> int:
        """Generated tokens of all rows."""
        return sum(len(row) for row in self.rows)

    @property
    def work(self) -> list[tuple[int, int, int]]:
        """How many rounds every row took, how many drafted tokens it kept, and how many of these only the rule did.

        Transformers' own loops don't count. Every call of the target is a round there, in which every token but one was
        drafted; a row of a batch, which only the target alone answers there, takes as many as it has tokens. The
        draft alone has none.
        """
        if self.stats is not None:
            return [(row.rounds, row.accepted, row.accepted_lossy) for row in self.stats.rows]
        rounds = [min(self.target_calls, len(row)) for row in self.rows]
        return [(n, len(row) - n, 0) for n, row in zip(rounds, self.rows, strict=True)]


@dataclass(frozen=True)
class Instruments:
    """A clock in seconds, and a counter of the joules used so far where there is one."""

    clock: Clock = time.perf_counter
    energy: Callable[[], float] | None = None


def run_request(
    models: Models,
    mode: DecodingMode,
    batch: PromptBatch,
    max_new_tokens: int = 100,
    instruments: Instruments = Instruments(),
    *,
    meter: bool = False,
) -> Response:
    """Answer one batch in one decoding mode; torch's own random numbers are left where they were.

    With ``meter``, it also finds out where the time goes. On a GPU that means waiting for the device at every pass, so
    such a call is slower than others.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> batch, = batches_of(pair.tokenizer(["Question: Ada has 3 pens."])["input_ids"])
    >>> mode = DecodingMode("lossless", "lossless", gamma=5)
    >>> response = run_request(Models(pair.target, pair.draft), mode, batch, max_new_tokens=8)
    >>> response.tokens, response.stats.lossless
    (8, True)
    """
    clock, energy, device = instruments.clock, instruments.energy, models.target.device
    synchronize = synchronizer(device)
    keywords: dict[str, Any] = {
        "input_ids": batch.ids,
        "attention_mask": batch.mask,
        "max_new_tokens": max_new_tokens,
        "pad_token_id": models.target.generation_config.pad_token_id or 0,
        **mode.keywords(models, batch.seed),
    }
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(mode.prepared(models))
        forwards = memory = None
        if meter:
            target, draft = (
                stack.enter_context(metered(model, synchronize, clock)) for model in (models.target, models.draft)
            )
            forwards, memory = {"target": target, "draft": draft}, peak_memory(device)
            memory.reset()
        calls: list[None] = []
        if mode.rule is None:
            counted = models.target.register_forward_pre_hook(lambda module, args: calls.append(None))
            stack.callback(counted.remove)
        torch.manual_seed(batch.seed)
        synchronize()
        joules = energy() if energy else 0.0
        started = clock()
        output = mode.generating(models).generate(**keywords)
        synchronize()
        seconds = clock() - started
        joules = energy() - joules if energy else None
        peak = memory and memory.peak()
    stats = getattr(output, "lossy_stats", None)
    # The statistics look at the wall's clock.
    deciding = stats.seconds.get("deciding") if stats is not None and clock is time.perf_counter else None
    width = batch.ids.shape[1]
    return Response(
        rows=[until_end(row[width:], models.target) for row in output.sequences],
        seconds=seconds,
        stats=stats,
        target_calls=len(calls),
        joules=joules,
        forwards=forwards,
        split=forwards and _split(**forwards, started=started, seconds=seconds, deciding=deciding),
        peak_memory=peak,
    )


def until_end(tokens: Tensor, model: PreTrainedModel) -> Tensor:
    """Return the tokens up to the first EOS; what follows is the padding of a batch."""
    eos = model.generation_config.eos_token_id
    if eos is None:
        return tokens
    ends = torch.isin(tokens, torch.tensor(eos, device=tokens.device)).nonzero()
    return tokens[: ends[0] + 1] if len(ends) else tokens


def _split(
    target: ForwardTimes, draft: ForwardTimes, started: float, seconds: float, deciding: float | None
) -> TimeSplit | None:
    if not target.calls:
        return None  # a compiled pass does not call its modules
    return TimeSplit(
        drafting=draft.seconds,
        verifying=target.seconds,
        deciding=deciding,
        rest=seconds - draft.seconds - target.seconds - (deciding or 0.0),
        draft_calls=len(draft.calls),
        target_calls=len(target.calls),
        draft_call=statistics.median(draft.calls) if draft.calls else None,
        target_call=statistics.median(target.calls),
        first_token=target.first_end - started,
    )
