"""Kinds of logits processors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.generation import logits_process as _processors

# They look at one position's logits alone, so all positions of a round go through them at once.
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


# They depend on a row's number in the batch, not only on its tokens.
_INDEXED_PROCESSORS = (
    _processors.PrefixConstrainedLogitsProcessor,
    _processors.RepetitionPenaltyLogitsProcessor,  # counts the prompts' padding
    _processors.EncoderRepetitionPenaltyLogitsProcessor,
    _processors.EncoderNoRepeatNGramLogitsProcessor,
)


# They keep a cache or context between calls, which a second call for one prefix corrupts.
STATEFUL_PROCESSORS = {
    _processors.UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale",
    _processors.SynthIDTextWatermarkLogitsProcessor: "watermarking_config",
}
"""Processors that keep a state from token to token, each with the field that asks for it."""


def process_rows_alike(processors: Iterable[Any]) -> bool:
    """Tell whether logits processors are known to ignore a row's number in the batch."""
    return all(
        type(processor).__module__ == _processors.__name__ and not isinstance(processor, _INDEXED_PROCESSORS)
        for processor in processors
    )
