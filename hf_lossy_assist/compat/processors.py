"""Kinds of logits processors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.generation import logits_process as _processors

# Functions of one position's logits alone: all positions of a round can go through them at once.
PREFIX_FREE_PROCESSORS = tuple(
    getattr(_processors, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopPLogitsWarper",
        "TopKLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "SuppressTokensLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
    )
    if hasattr(_processors, name)
)


# These look at a row's number in the batch, not only at its tokens.
_INDEXED_PROCESSORS = (
    _processors.PrefixConstrainedLogitsProcessor,
    _processors.RepetitionPenaltyLogitsProcessor,  # counts the prompts' padding
    _processors.EncoderRepetitionPenaltyLogitsProcessor,
    _processors.EncoderNoRepeatNGramLogitsProcessor,
)


# These carry a cache or a context of their own from call to call, so asking twice about one prefix corrupts them.
STATEFUL_PROCESSORS = (
    _processors.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    _processors.SynthIDTextWatermarkLogitsProcessor,
)


def process_rows_alike(processors: Iterable[Any]) -> bool:
    """Tell whether logits processors are known not to care which row of the batch they look at."""
    return all(
        type(processor).__module__ == _processors.__name__ and not isinstance(processor, _INDEXED_PROCESSORS)
        for processor in processors
    )
