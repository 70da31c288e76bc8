"""What ``generate()`` returns, token by token, in transformers' own layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

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
class OutputRecorder:
    """Collects what the caller asked for; one entry per output token, as plain ``generate()`` gives it."""

    config: GenerationConfig
    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    hidden_states: list[tuple[Tensor, ...]] = field(default_factory=list)
    attentions: list[tuple[Tensor, ...]] = field(default_factory=list)
    cross_attentions: list[tuple[Tensor, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        asked = OUTPUTS if self.config.return_dict_in_generate else ()
        self._wanted = {name for name in asked if getattr(self.config, f"output_{name}", False)}

    def wants(self, name: str) -> bool:
        """Tell whether the caller asked for ``output_<name>``."""
        return name in self._wanted

    def scores_with(self, new: Tensor, count: int) -> tuple[Tensor, ...] | None:
        """Return all scores so far and the first ``count`` positions of ``new``, if the caller asked for scores."""
        return (*self.scores, *(new[:, i] for i in range(count))) if self.wants("scores") else None

    def record(self, outputs: Any, scores: Tensor, raw: Tensor | None, committed: int, drafted: int) -> None:
        """Record one round's ``committed`` tokens from a forward over ``drafted`` ones."""
        if self.wants("scores"):
            self.scores += [scores[:, i] for i in range(committed)]
        if raw is not None:
            self.logits += [raw[:, i] for i in range(committed)]
        if self.wants("hidden_states"):
            states = _of_decoder(outputs, "hidden_states")
            self.hidden_states += self._per_token(states, committed, drafted, not self.hidden_states)
        if self.wants("attentions"):
            first = not self.attentions
            weights = _of_decoder(outputs, "attentions")
            self.attentions += self._per_token(weights, committed, drafted, first, True)
            if (cross := getattr(outputs, "cross_attentions", None)) is not None:
                self.cross_attentions += self._per_token(cross, committed, drafted, first)

    def finish(
        self, sequences: Tensor, cache: Any, stats: LossyStats, encoder_outputs: Any = None
    ) -> GenerateLossyOutput | GenerateLossyEncoderDecoderOutput:
        """Return everything recorded, as tuples; for an encoder-decoder model with what its encoder said."""

        def given(name: str, values: list) -> tuple | None:
            return tuple(values) if self.wants(name) else None

        both = {
            "sequences": sequences,
            "scores": given("scores", self.scores),
            "logits": given("logits", self.logits),
            "past_key_values": cache,
        }
        states, weights = given("hidden_states", self.hidden_states), given("attentions", self.attentions)
        if encoder_outputs is None:
            return GenerateLossyOutput(**both, hidden_states=states, attentions=weights, lossy_stats=stats)
        output = GenerateLossyEncoderDecoderOutput(
            **both,
            decoder_hidden_states=states,
            decoder_attentions=weights,
            cross_attentions=given("attentions", self.cross_attentions),
            encoder_hidden_states=encoder_outputs.get("hidden_states") if self.wants("hidden_states") else None,
            encoder_attentions=encoder_outputs.get("attentions") if self.wants("attentions") else None,
        )
        return output.with_stats(stats)

    @staticmethod
    def _per_token(
        layers: tuple[Tensor, ...], committed: int, drafted: int, first: bool, square: bool = False
    ) -> list[tuple[Tensor, ...]]:
        """Cut ``(..., queries, width)`` tensors into one entry per token; the first entry holds the prompt too."""
        entries = []
        for i in range(committed):
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


class BatchOutputRecorder:
    """Collects what the caller asked for row by row, and puts the rows side by side in the end.

    Parameters
    ----------
    config
        What the caller asked for.
    batch
        Rows.
    prompt
        Width of the prompts.
    """

    def __init__(self, config: GenerationConfig, batch: int, prompt: int) -> None:
        self.rows = [OutputRecorder(config) for _ in range(batch)]
        self.prompt = prompt

    def wants(self, name: str) -> bool:
        """Tell whether the caller asked for ``output_<name>``."""
        return self.rows[0].wants(name)

    def record(
        self, rows: list[int], outputs: Any, scores: Tensor, raw: Tensor | None, committed: list[int], drafted: int
    ) -> None:
        """Record one round of the given rows."""
        layered = [name for name in ("hidden_states", "attentions") if self.wants(name)]
        for i, (row, count) in enumerate(zip(rows, committed, strict=True)):
            own = {name: tuple(layer[i : i + 1] for layer in getattr(outputs, name)) for name in layered}
            own_raw = None if raw is None else raw[i : i + 1]
            self.rows[row].record(SimpleNamespace(**own), scores[i : i + 1], own_raw, count, drafted)

    def finish(self, sequences: Tensor, stats: LossyStats) -> GenerateLossyOutput:
        """Return everything recorded; zeros where a row had ended."""

        def given(name: str) -> tuple | None:
            return side_by_side([getattr(row, name) for row in self.rows]) if self.wants(name) else None

        return GenerateLossyOutput(
            sequences=sequences,
            scores=given("scores"),
            logits=given("logits"),
            hidden_states=given("hidden_states"),
            attentions=self._attentions() if self.wants("attentions") else None,
            lossy_stats=stats,
        )

    def _attentions(self) -> tuple:
        """Give every token as many keys as its text has: padding that a batch in the making has besides goes."""
        rows = [
            [tuple(_last(layer, self.prompt + i) for layer in entry) for i, entry in enumerate(row.attentions)]
            for row in self.rows
        ]
        return side_by_side(rows)


def side_by_side(rows: Sequence[Sequence[Any]]) -> tuple:
    """Put rows' entries, one per token, side by side; zeros where a row has none any more."""
    longest = max(rows, key=len)
    return tuple(
        _concatenated([row[i] if i < len(row) else None for row in rows], entry) for i, entry in enumerate(longest)
    )


def _of_decoder(outputs: Any, name: str) -> tuple[Tensor, ...]:
    states = getattr(outputs, f"decoder_{name}", None)
    return getattr(outputs, name) if states is None else states


def _concatenated(parts: list[Any], like: Any) -> Any:
    if isinstance(like, tuple):
        return tuple(
            _concatenated([None if part is None else part[i] for part in parts], like[i]) for i in range(len(like))
        )
    return torch.cat([torch.zeros_like(like) if part is None else part for part in parts])


def _last(weights: Tensor, keys: int) -> Tensor:
    """Return attention weights of the last ``keys`` keys, with zeros for those that are not there."""
    missing = keys - weights.shape[-1]
    return torch.nn.functional.pad(weights, (missing, 0)) if missing > 0 else weights[..., -keys:]
