"""Heads that draft from a target's own states: what an EAGLE-3 head and a model's MTP layer have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ..errors import LossyValueError
from .vocabulary import Vocabulary


class StateHead(nn.Module, ABC):
    """A layer that reads the target's state at a token and the token after it, and predicts the one after these.

    From the second drafted token on, its own output replaces the target's state.
    """

    title: ClassVar[str]  # in errors, after "`assistant_model` is"
    width: int  # of the embeddings that it reads

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The weights' type."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The weights' device."""

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
        """Return ``(B, L, d)`` what :meth:`forward` takes, from the target's states side by side."""

    @abstractmethod
    def forward(
        self, embeds: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        """Run the layers over positions, and add these to the cache.

        Parameters
        ----------
        embeds
            ``(B, L, d)`` embeddings of the tokens that follow the states.
        states
            ``(B, L, d)`` of :meth:`fuse`, or this method's output for the positions before.
        positions
            ``(B, L)`` where the states stand in the text.
        mask
            ``(B, 1, L, cached + L)`` True where a position is seen; None where all are.
        cache
            Keys and values of earlier positions.

        Returns
        -------
        Tensor
            ``(B, L, d)`` the input of :meth:`logits`, and of the next drafted token in place of ``states``.
        """

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """Return logits ``(B, L, V_draft)`` from the output of :meth:`forward`."""
