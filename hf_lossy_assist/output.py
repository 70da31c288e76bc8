"""What ``generate()`` returns, token by token, in transformers' own layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput

from .stats import LossyStats


@dataclass
class GenerateLossyOutput(GenerateDecoderOnlyOutput):
    """``GenerateDecoderOnlyOutput`` with the run's statistics.

    Attributes
    ----------
    lossy_stats
        What the run drafted, kept and corrected.
    """

    lossy_stats: LossyStats | None = None


@dataclass(eq=False)
class OutputRecorder:
    """Collects what the caller asked for; one entry per output token, as plain ``generate()`` gives it."""

    config: GenerationConfig
    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    hidden_states: list[tuple[Tensor, ...]] = field(default_factory=list)
    attentions: list[tuple[Tensor, ...]] = field(default_factory=list)

    def wants(self, name: str) -> bool:
        """Tell whether the caller asked for ``output_<name>``."""
        return bool(self.config.return_dict_in_generate and getattr(self.config, f"output_{name}", False))

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
            self.hidden_states += self._per_token(outputs.hidden_states, committed, drafted, not self.hidden_states)
        if self.wants("attentions"):
            self.attentions += self._per_token(outputs.attentions, committed, drafted, not self.attentions, True)

    def finish(self, sequences: Tensor, cache: Any, stats: LossyStats) -> GenerateLossyOutput:
        """Return everything recorded, as tuples."""

        def given(name: str, values: list) -> tuple | None:
            return tuple(values) if self.wants(name) else None

        return GenerateLossyOutput(
            sequences=sequences,
            scores=given("scores", self.scores),
            logits=given("logits", self.logits),
            attentions=given("attentions", self.attentions),
            hidden_states=given("hidden_states", self.hidden_states),
            past_key_values=cache,
            lossy_stats=stats,
        )

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
