"""One measured call of ``generate()``: one decoding mode answers one batch of prompts."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList, StopStringCriteria

from ..compat.inputs import ending_tokens
from ..compat.models import device_of
from ..core.statistics import LossyStats
from ..decoding.slow_drafts import measuring
from ..pairs import Pair
from .modes import DecodingMode


@dataclass(frozen=True)
class Ending:
    """Strings that end an answer, as EOS does."""

    strings: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase

    @property
    def keywords(self) -> dict[str, Any]:
        """Arguments of ``generate()``."""
        # As `stop_strings` they would fail in transformers' assisted generation: its draft has no tokenizer.
        return {"stopping_criteria": StoppingCriteriaList([StopStringCriteria(self.tokenizer, list(self.strings))])}

    def cut(self, tokens: Tensor) -> Tensor:
        """Return the tokens up to the first that completes one of the strings in their text."""

        def ended(count: int) -> bool:
            text = self.tokenizer.decode(tokens[:count])
            return any(string in text for string in self.strings)

        return tokens[: bisect_left(range(len(tokens)), True, key=ended)]


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """Prompts that are answered together."""

    ids: Tensor  # ``(B, L)`` token ids, padded on the left
    mask: Tensor  # ``(B, L)``, 1 for the prompts' tokens
    seed: int = 0  # of everything that is drawn for the answers
    ending: Ending | None = None

    def __len__(self) -> int:
        return len(self.ids)


def batches_of(
    prompts: Sequence[Sequence[int]],
    size: int = 1,
    *,
    device: torch.device | str = "cpu",
    pad: int | None = 0,
    seed: int = 0,
    ending: Ending | None = None,
) -> list[PromptBatch]:
    """Put prompts, as token ids, into batches of ``size``, padded on the left.

    A batch has the seed of its first prompt: ``seed`` plus the prompt's number.

    Examples
    --------
    >>> [batch.ids.tolist() for batch in batches_of([[1, 2, 3], [1, 4], [1]], 2)]
    [[[1, 2, 3], [0, 1, 4]], [[1]]]
    """
    batches = []
    for first in range(0, len(prompts), size):
        rows = prompts[first : first + size]
        width = max(map(len, rows))
        ids = [[pad or 0] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        put = (torch.tensor(values, device=device) for values in (ids, mask))
        batches.append(PromptBatch(*put, seed + first, ending))
    return batches


@dataclass(frozen=True, eq=False)
class Response:
    """The answers of one call of ``generate()``, and its measurements."""

    rows: Sequence[Tensor]  # generated tokens of every prompt ``(n,)``, EOS included
    seconds: float
    # For each row: rounds, drafted tokens kept, and those among them that only the lossy rule kept.
    work: Sequence[tuple[int, int, int]]
    drafted: Sequence[int] | None = None  # tokens of each row, where it is known
    stats: LossyStats | None = None  # the run's statistics over all rows, where it has any

    @property
    def tokens(self) -> int:
        return sum(len(row) for row in self.rows)


def run_request(
    pair: Pair,
    mode: DecodingMode,
    batch: PromptBatch,
    max_new_tokens: int = 100,
    clock: Callable[[], float] = time.perf_counter,
) -> Response:
    """Answer one batch in one decoding mode, timed by a ``clock``; torch's random state is restored afterwards.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> batch, = batches_of(pair.tokenizer(["Question: Ada has 3 pens."])["input_ids"])
    >>> mode = DecodingMode("lossless", "lossless", gamma=5)
    >>> response = run_request(pair, mode, batch, max_new_tokens=8)
    >>> response.tokens, response.stats.lossless
    (8, True)
    """
    if mode.engine is not None:
        return mode.engine.respond(pair, mode, batch, max_new_tokens)
    device = device_of(pair.target)
    synchronize = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    keywords: dict[str, Any] = {
        "input_ids": batch.ids,
        "attention_mask": batch.mask,
        "max_new_tokens": max_new_tokens,
        "pad_token_id": pair.target.generation_config.pad_token_id or 0,
        **mode.keywords(pair, batch.seed),
        **(batch.ending.keywords if batch.ending else {}),
    }
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(mode.prepared(pair))
        stack.callback(measuring.reset, measuring.set(True))
        calls: list[None] = []
        drafts: list[None] = []
        if mode.rule is None:
            for model, seen in ((pair.target, calls), (pair.draft, drafts)):
                if model is not None:
                    hook = model.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(None))
                    stack.enter_context(hook)
        torch.manual_seed(batch.seed)
        synchronize()
        started = clock()
        output = mode.generating(pair).generate(**keywords)
        synchronize()
        seconds = clock() - started
    stats = getattr(output, "lossy_stats", None)
    width = batch.ids.shape[1]
    rows = [until_end(row[width:], mode.generating(pair), batch.ending) for row in output.sequences]
    if stats is not None:
        work = [(row.rounds, row.accepted, row.accepted_lossy) for row in stats.rows]
        drafted = [row.drafted for row in stats.rows]
    else:
        # Transformers' own loops have no statistics. There every call of the target is a round, and all of its tokens
        # but one were drafted. Batches are decoded by the target alone there, so a row has as many rounds as tokens.
        work = [(min(len(calls), len(row)), max(0, len(row) - len(calls)), 0) for row in rows]
        drafted = None if mode.gamma and pair.only_looks_up else [len(drafts) if mode.gamma else 0 for _ in rows]
    return Response(rows, seconds, work, drafted, stats)


def until_end(tokens: Tensor, model: PreTrainedModel, ending: Ending | None = None) -> Tensor:
    """Return the tokens up to the first EOS or another end; padding follows in a batch."""
    ends = ending_tokens(model.generation_config)
    tokens = tokens[: next((i for i, token in enumerate(tokens.tolist(), 1) if token in ends), None)]
    return ending.cut(tokens) if ending else tokens
