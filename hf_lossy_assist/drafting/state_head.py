"""Heads that draft from a target's own states: what EAGLE-3 and DFlash heads and a model's MTP layer share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import DynamicCache, PreTrainedModel

from ..errors import LossyValueError
from .vocabulary import Vocabulary


class StateHead(nn.Module, ABC):
    """Drafts from states of the target's layers; its class says what its forwards read."""

    title: str  # in errors, after "`assistant_model` is"
    width: int  # of the embeddings that it reads
    at_once = False  # whether one forward drafts all tokens

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The weights' type."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The weights' device."""

    @property
    def longest(self) -> int | None:
        """How many tokens a draft can have; None for any number."""
        return None

    def get_decoder(self) -> Self:
        """Return itself: callers that time a model's forwards watch its decoder."""
        return self

    @abstractmethod
    def check(self, target: PreTrainedModel) -> None:
        """Raise unless it can draft for ``target``; the error says what differs."""

    @abstractmethod
    def layers_of(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Return which of a target's states it reads.

        i is the state that enters layer i, and n = ``num_hidden_layers`` what leaves the last; n + 1 is that, normed.
        """

    @abstractmethod
    def vocabulary(self, target: PreTrainedModel) -> Vocabulary:
        """Return how to translate its tokens to the target's."""

    def embeddings(self, target: PreTrainedModel) -> Tensor:
        """Return the embeddings ``(V, d)`` that it reads: the target's, as they are stored."""
        weight = target.get_input_embeddings().weight
        if weight.shape[1] != self.width or weight.is_meta:
            raise LossyValueError(
                f"`assistant_model` is {self.title} without embeddings, which uses the target's, but these "
                f"{'are not in memory' if weight.is_meta else f'have the width {weight.shape[1]}'}, and it reads width "
                f"{self.width}; pass a head with embeddings of its own"
            )
        return weight

    @abstractmethod
    def new_cache(self) -> DynamicCache:
        """Return an empty cache for its layers."""

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """Return ``(B, L, d)`` what the layers read, from the target's states side by side."""


def embedded(ids: Tensor, embeddings: Tensor, device: torch.device) -> Tensor:
    """Return the embeddings of tokens, on the head's ``device``; a target's newest tokens may have none."""
    ids = ids.to(embeddings.device)
    return embedding(ids.masked_fill(ids >= len(embeddings), 0), embeddings).to(device)
