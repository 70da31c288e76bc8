"""The first stage of training a draft: the target writes texts until there are enough."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .openings import Opening, dealt
from .text_store import TextStore
from .text_writing import TextSettings, write_texts


@dataclass(frozen=True)
class TextProgress:
    """How far the writing is."""

    answer_tokens: int
    texts: int
    tokens_per_second: float


def write_until(
    tokens: int,
    store: TextStore,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    openings: Sequence[Opening],
    settings: TextSettings,
    *,
    process: int = 0,
    processes: int = 1,
    on_batch: Callable[[TextProgress], None] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Add batches to a folder until it has ``tokens`` tokens of answers; each of several processes takes its own.

    Parameters
    ----------
    stopped
        Asked after every step; the batch that is being written is given up then.
    """
    store.set_damaged_aside()
    own = len(openings) == 1 and bool(openings[0].turn_end)
    known = {text.prompt for batch in store.batches() for text in store.read(batch)} if own else set()
    ends = end_tokens(model, tokenizer)
    there = set(store.batches())
    for batch in itertools.count(process, processes):
        if store.answer_tokens() >= tokens or stopped():
            return
        if batch in there:
            continue
        begun = time.perf_counter()
        texts = write_texts(model, dealt(openings, batch, settings.rows, settings.seed), batch, settings, ends, known)
        store.add(batch, texts)
        written = sum(len(text.ids) - text.answer for text in texts)
        on_batch(TextProgress(store.answer_tokens(), len(texts), written / (time.perf_counter() - begun)))


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that end an answer."""
    named = model.generation_config.eos_token_id
    named = [named] if isinstance(named, int) else named or []
    return frozenset([*named, *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])])
