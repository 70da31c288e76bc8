"""What ``generate()`` returns, token by token, in transformers' own layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from ..compat import cache_of
from ..messages import Verification
from ..stats import LossyStats

OUTPUTS = ("scores", "logits", "hidden_states", "attentions")
"""What a caller may ask for, token by token."""


@dataclass
class GenerateLossyOutput(GenerateDecoderOnlyOutput):
    """``GenerateDecoderOnlyOutput`` with the run's statistics.

    Attributes
    ----------
    lossy_stats
        What the run drafted, kept and corrected.

    For a batch ``past_key_values`` is None, and scores, logits, states and attentions are zero at the padding after a
    row's end.
    """

    lossy_stats: LossyStats | None = None

    def with_stats(self, stats: LossyStats) -> GenerateLossyOutput:
        """Return the output, with its statistics."""
        self.lossy_stats = stats
        return self


class GenerateLossyEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """``GenerateEncoderDecoderOutput`` with the run's statistics.

    Attributes
    ----------
    lossy_stats
        What the run drafted, kept and corrected. No field, because Whisper's ``generate()`` takes fields apart by row
        (and drops this; see :func:`~hf_lossy_assist.last_stats`).
    """

    lossy_stats = None

    def with_stats(self, stats: LossyStats) -> GenerateLossyEncoderDecoderOutput:
        """Return the output, with its statistics."""
        self.lossy_stats = stats
        return self


@dataclass(eq=False)
class _Row:
    """What the caller asked for about one row: one entry per token of the output, as plain ``generate()`` gives it."""

    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    hidden_states: list[tuple[Tensor, ...]] = field(default_factory=list)
    attentions: list[tuple[Tensor, ...]] = field(default_factory=list)
    cross_attentions: list[tuple[Tensor, ...]] = field(default_factory=list)


class OutputRecorder:
    """Collects what the caller asked for row by row, and puts the rows side by side in the end.

    Parameters
    ----------
    config
        What the caller asked for.
    rows
        How many rows there are.
    prompt
        Width of the prompts.
    """

    def __init__(self, config: GenerationConfig, rows: int = 1, prompt: int = 0) -> None:
        self.as_dict = bool(config.return_dict_in_generate)
        asked = OUTPUTS if self.as_dict else ()
        self.wanted = frozenset(name for name in asked if getattr(config, f"output_{name}", False))
        self.rows = [_Row() for _ in range(rows)]
        self.prompt = prompt

    def record(self, rows: Sequence[int], verification: Verification, counts: Sequence[int], drafted: int) -> None:
        """Record the first ``counts`` tokens of each row from a round that verified ``drafted`` ones."""
        one = len(rows) == 1
        for i, (number, count) in enumerate(zip(rows, counts, strict=True)):
            row, own = self.rows[number], slice(None) if one else slice(i, i + 1)
            for name, values in (("scores", verification.logits), ("logits", verification.raw_logits)):
                if name in self.wanted:
                    getattr(row, name).extend(values[own, j] for j in range(count))
            for name in ("hidden_states", "attentions"):
                if name in self.wanted:
                    layers = _of_decoder(verification.outputs, name)
                    layers = tuple(layer.narrow(_rows_of(layer, name), i, 1) for layer in layers)
                    entries = getattr(row, name)
                    first = not entries
                    entries += _per_token(layers, count, drafted, first, square=name == "attentions")
                    cross = getattr(verification.outputs, "cross_attentions", None)
                    if name == "attentions" and cross is not None:
                        row.cross_attentions += _per_token(tuple(layer[own] for layer in cross), count, drafted, first)

    def scores_upto(self, count: int) -> tuple[Tensor, ...] | None:
        """Return the scores of the first ``count`` tokens ``(B, V)`` each, if the caller asked for scores."""
        return side_by_side([row.scores[:count] for row in self.rows]) if "scores" in self.wanted else None

    def cut(self, row: int, length: int) -> None:
        """Let only the first ``length`` tokens of a row be its text."""
        if self.wanted:
            for entries in vars(self.rows[row]).values():
                del entries[length:]

    def finish(self, sequences: Tensor, stats: LossyStats, carried: Mapping[str, Any]) -> Any:
        """Return everything recorded, as tuples.

        ``carried`` is what a run of one row has carried from forward to forward: its cache and, of an encoder-decoder
        model, what the encoder said.
        """
        given = {name: self._given(name) if name in self.wanted else None for name in OUTPUTS}
        encoder = carried.get("encoder_outputs")
        both = {
            "sequences": sequences,
            "scores": given["scores"],
            "logits": given["logits"],
            "past_key_values": cache_of(carried),
        }
        states, weights = given["hidden_states"], given["attentions"]
        if encoder is None:
            return GenerateLossyOutput(**both, hidden_states=states, attentions=weights, lossy_stats=stats)
        output = GenerateLossyEncoderDecoderOutput(
            **both,
            decoder_hidden_states=states,
            decoder_attentions=weights,
            cross_attentions=self._given("cross_attentions") if weights is not None else None,
            encoder_hidden_states=encoder.get("hidden_states") if states is not None else None,
            encoder_attentions=encoder.get("attentions") if weights is not None else None,
        )
        return output.with_stats(stats)

    def _given(self, name: str) -> tuple:
        rows = [getattr(row, name) for row in self.rows]
        if name == "attentions" and len(rows) > 1:
            # As many keys as the text has: padding that a batch in the making has besides goes.
            rows = [
                [tuple(_last(layer, self.prompt + i) for layer in entry) for i, entry in enumerate(row)] for row in rows
            ]
        return side_by_side(rows, name)


def side_by_side(rows: Sequence[Sequence[Any]], name: str = "") -> tuple:
    """Put rows' entries of one kind, one per token, side by side; zeros where a row has none any more."""
    if len(rows) == 1:
        return tuple(rows[0])
    longest = max(rows, key=len)
    return tuple(
        _concatenated([row[i] if i < len(row) else None for row in rows], entry, name)
        for i, entry in enumerate(longest)
    )


def _per_token(
    layers: tuple[Tensor, ...], count: int, drafted: int, first: bool, square: bool = False
) -> list[tuple[Tensor, ...]]:
    """Cut ``(..., queries, width)`` tensors into one entry per token; the first entry holds the prompt too."""
    entries = []
    for i in range(count):
        after = drafted - i  # query positions after the one that yields token i
        entry = []
        for layer in layers:
            end = layer.shape[-2] - after
            start = 0 if first and i == 0 else end - 1
            # Attention weights also have the keys of later positions, which a plain forward would not have.
            width = layer.shape[-1] - after if square else layer.shape[-1]
            entry.append(layer[..., start:end, :width])
        entries.append(tuple(entry))
    return entries


def _of_decoder(outputs: Any, name: str) -> tuple[Tensor, ...]:
    states = getattr(outputs, f"decoder_{name}", None)
    return getattr(outputs, name) if states is None else states


def _rows_of(values: Tensor, name: str) -> int:
    """Return the dimension of the rows: in some models, states have others before it."""
    return values.dim() - 3 if name.endswith("hidden_states") else 0


def _concatenated(parts: list[Any], like: Any, name: str) -> Any:
    if isinstance(like, tuple):
        return tuple(
            _concatenated([None if part is None else part[i] for part in parts], like[i], name)
            for i in range(len(like))
        )
    width = max(0 if part is None else part.shape[-2] for part in parts)
    parts = [torch.zeros_like(like) if part is None else _filled_up(part, width) for part in parts]
    return torch.cat(parts, _rows_of(like, name))


def _filled_up(part: Tensor, width: int) -> Tensor:
    """Return states or weights of a row whose padding has not been read with zeros for it."""
    return torch.nn.functional.pad(part, (0, 0, width - part.shape[-2], 0)) if part.shape[-2] < width else part


def _last(weights: Tensor, keys: int) -> Tensor:
    """Return attention weights of the last ``keys`` keys, with zeros for those that are not there."""
    missing = keys - weights.shape[-1]
    return torch.nn.functional.pad(weights, (missing, 0)) if missing > 0 else weights[..., -keys:]
