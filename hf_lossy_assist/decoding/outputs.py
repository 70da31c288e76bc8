"""The output of ``generate()``, token by token, in transformers' own layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from ..compat.caches import CACHE, cache_of
from ..core.messages import TargetOutput
from ..core.statistics import LossyStats

OUTPUTS = ("scores", "logits", "hidden_states", "attentions")
"""Outputs per token that a caller may ask for."""


@dataclass
class GenerateLossyOutput(GenerateDecoderOnlyOutput):
    """``GenerateDecoderOnlyOutput`` with the run's statistics.

    For a batch the cache is None. Where its rows are decoded together, scores, logits, states and attentions are zero
    after a row's end.

    Attributes
    ----------
    lossy_stats
        How many tokens the run drafted, kept and corrected.
    """

    lossy_stats: LossyStats | None = None


class GenerateLossyEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """``GenerateEncoderDecoderOutput`` with the run's statistics.

    Attributes
    ----------
    lossy_stats
        How many tokens the run drafted, kept and corrected. It is no field, because Whisper's ``generate()`` splits
        fields by row (and drops this; see :func:`~hf_lossy_assist.last_stats`).
    """

    lossy_stats = None


class OutputRecorder:
    """Collects the wanted outputs row by row, and joins the rows in the end.

    Runs that decode one row each share it. ``prompt`` is the width of the prompts.

    Attributes
    ----------
    windows
        How many keys each attending layer keeps for a forward over one token, None for all.
    """

    windows: Sequence[int | None] = ()

    def __init__(self, config: GenerationConfig, rows: int = 1, prompt: int = 0) -> None:
        self.as_dict = bool(config.return_dict_in_generate)
        asked = [name for name in OUTPUTS if getattr(config, f"output_{name}", False)] if self.as_dict else ()
        self.wanted = frozenset(asked)
        # Per row and name, one entry per token, as plain `generate()` gives it.
        self.rows: dict[int, dict[str, list[Any]]] = {i: defaultdict(list) for i in range(rows)}
        self.prompt = prompt

    def record(
        self, rows: Sequence[int], scores: Tensor, output: TargetOutput, counts: Sequence[int], drafted: int
    ) -> None:
        """Record the first ``counts`` tokens of each row from a round that verified a chain of ``drafted`` tokens.

        ``scores`` ``(B, n + 1, V)`` are the processed logits.
        """
        one = len(rows) == 1
        for i, (number, count) in enumerate(zip(rows, counts, strict=True)):
            row, own = self.rows[number], slice(None) if one else slice(i, i + 1)
            for name, values in (("scores", scores), ("logits", output.raw_logits)):
                if name in self.wanted:
                    row[name].extend(values[own, j] for j in range(count))
            for name in ("hidden_states", "attentions"):
                if name in self.wanted:
                    layers = getattr(output.outputs, f"decoder_{name}", None)  # may be empty
                    layers = getattr(output.outputs, name) if layers is None else layers
                    layers = tuple(layer.narrow(_rows_of(layer, name), i, 1) for layer in layers)
                    first = not row[name]
                    row[name] += _per_token(layers, count, drafted, first, square=name == "attentions")
                    cross = getattr(output.outputs, "cross_attentions", None)
                    if name == "attentions" and cross is not None:
                        cross = tuple(layer[own] for layer in cross)
                        row["cross_attentions"] += _per_token(cross, count, drafted, first)

    def scores_upto(self, count: int) -> tuple[Tensor, ...] | None:
        """Return the scores of the first ``count`` tokens ``(B, V)`` each, if the caller asked for scores."""
        return side_by_side([row["scores"][:count] for row in self.rows.values()]) if "scores" in self.wanted else None

    def cut(self, row: int, length: int) -> None:
        for entries in self.rows[row].values():
            del entries[length:]

    def finish(self, sequences: Tensor, stats: LossyStats, carried: Mapping[str, Any]) -> Any:
        """Return everything recorded, as tuples.

        ``carried`` are inputs that forwards handed on: the cache of a single row and, with an encoder, the encoder's
        outputs.
        """
        scores, logits, states, weights = (self._given(name) if name in self.wanted else None for name in OUTPUTS)
        encoder = carried.get("encoder_outputs")
        both = {"sequences": sequences, "scores": scores, "logits": logits, CACHE: cache_of(carried)}
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
        output.lossy_stats = stats
        return output

    def _given(self, name: str) -> tuple:
        rows = [row[name] for row in self.rows.values()]
        if name == "attentions":
            rows = [[self._seen(weights, i) for i, weights in enumerate(row)] for row in rows]
        return side_by_side(rows, name)

    def _seen(self, weights: tuple[Tensor, ...], token: int) -> tuple[Tensor, ...]:
        """Return a token's attention weights over the keys of a plain forward: rounds differ in padding and windows."""
        seen = []
        for i, layer in enumerate(weights):
            keys = self.prompt + token if len(self.rows) > 1 else layer.shape[-1]
            window = self.windows[i] if token and i < len(self.windows) else None  # windows don't cut the prompt
            seen.append(_last(layer, keys if window is None else min(keys, window)))
        return tuple(seen)


def side_by_side(rows: Sequence[Sequence[Any]], name: str = "") -> tuple:
    """Join rows' entries of one kind, one per token; zeros where a row has ended."""
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
            # A plain forward would not have the keys of later positions.
            width = layer.shape[-1] - after if square else layer.shape[-1]
            entry.append(layer[..., start:end, :width])
        entries.append(tuple(entry))
    return entries


def _rows_of(values: Tensor, name: str) -> int:
    """Return the dimension of the rows: some models' states have further dimensions before it."""
    return values.dim() - 3 if name.endswith("hidden_states") else 0


def _concatenated(parts: list[Any], like: Any, name: str) -> Any:
    if isinstance(like, tuple):
        return tuple(
            _concatenated([None if part is None else part[i] for part in parts], like[i], name)
            for i in range(len(like))
        )
    size = [max(part.shape[dim] for part in parts if part is not None) for dim in (-2, -1)]
    parts = [_filled_up(torch.zeros_like(like) if part is None else part, *size) for part in parts]
    return torch.cat(parts, _rows_of(like, name))


def _filled_up(part: Tensor, height: int, width: int) -> Tensor:
    above, before = height - part.shape[-2], width - part.shape[-1]
    return torch.nn.functional.pad(part, (before, 0, above, 0)) if above or before else part


def _last(weights: Tensor, keys: int) -> Tensor:
    """Return attention weights of the last ``keys`` keys, with zeros for missing keys."""
    missing = keys - weights.shape[-1]
    return torch.nn.functional.pad(weights, (missing, 0)) if missing > 0 else weights[..., -keys:]
