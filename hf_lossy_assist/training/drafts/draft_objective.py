"""What a draft is trained for, as the training loop sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .draft_batches import DraftBatch

# Half precision decides near ties otherwise in a parallel forward than token by token; drawn texts have far fewer.
_GREEDY_SHARE = 0.95


class DraftObjective(nn.Module, ABC):
    """A draft, and how far its law is from the target's.

    Parameters
    ----------
    target
        The model that it is trained for, which stays as it is.
    """

    def __init__(self, target: PreTrainedModel) -> None:
        super().__init__()
        self._target = [target]  # in a list it is no module of this one, so it is neither trained nor saved

    @property
    def target(self) -> PreTrainedModel:
        """The model that the draft is for."""
        return self._target[0]

    def begin(self, done: float) -> None:
        """Prepare for a step, of a training of which the share ``done`` is over."""

    @abstractmethod
    def forward(self, batch: DraftBatch) -> Tensor:
        """Return the loss of a batch, the mean over what is predicted."""

    @abstractmethod
    def matches(self, batch: DraftBatch, gamma: int) -> Tensor:
        """Return ``(B, L, γ)`` whether the likeliest drafts behind each known token are the text's own tokens.

        The k-th one counts on those before it being right.
        """

    @torch.no_grad()
    def greedy(self, batch: DraftBatch) -> Tensor:
        """Return ``(B,)`` whether the target wrote a text by taking its likeliest token everywhere."""
        head = self.target.get_output_embeddings().weight
        said = batch.answers[:, 1:]
        right = torch.zeros_like(said)
        for row, states in enumerate(batch.last[:, :-1]):
            places = said[row].nonzero()[:, 0]
            logits = states[places].to(head.dtype) @ head.T
            right[row, places] = logits.argmax(-1) == batch.ids[row, places + 1]
        return right.sum(-1) >= _GREEDY_SHARE * said.sum(-1)
