"""Drafting that does not wait for the target while a head on the draft model finds the tokens acceptable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..heads import VerifierHead
from .model import ModelDrafter


class RunningDrafter(ModelDrafter, ABC):
    """Drafts one token at a time and says how acceptable the verifier head finds it.

    Parameters
    ----------
    model
        The draft model.
    head
        The verifier head, which reads the model's state at one position.
    **settings
        As for :class:`ModelDrafter`.
    """

    def __init__(self, model: PreTrainedModel, head: VerifierHead, **settings: Any) -> None:
        super().__init__(model, 1, keep_hidden=True, **settings)
        self.head = head

    def reset(self) -> None:
        super().reset()
        self.proposals = 0

    @staticmethod
    def of(model: PreTrainedModel, head: VerifierHead, **settings: Any) -> RunningDrafter:
        """Return the drafter for the position that a head reads."""
        return _BY_POSITION[head.config.position](model, head, **settings)

    @abstractmethod
    def propose(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draft one token after ``ids`` ``(B, L)``.

        Returns
        -------
        tuple
            The tokens ``(B, 1)``, the processed logits of q ``(B, 1, V)``, and P(acceptable) ``(B,)``.
        """

    def _score(self) -> Tensor:
        state = self._tap.hidden[:, -1]
        self.proposals += len(state)
        return self.head.probability(state.to(self.head.weight.device).float())


class PreviousStateDrafter(RunningDrafter):
    """Scores a token by the state that predicted it: no forward that drafting does not need anyway."""

    def propose(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.forget_after(ids.shape[1] - 1)
        token, logits, _ = self.step(ids)
        return token, logits, self._score()


class TokenStateDrafter(RunningDrafter):
    """Scores a token by the state that has read it: one forward more per token that is rejected."""

    def reset(self) -> None:
        super().reset()
        self._next: Tensor | None = None

    def propose(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._cached != ids.shape[1] or self._next is None:  # the last token was not the one that was read
            self.forget_after(ids.shape[1] - 1)
            self._next = super().read(self.vocabulary.context(ids))
        token, logits, _ = self.step(ids)
        self._next = super().read(self.vocabulary.context(torch.cat([ids, token], dim=-1)))
        return token, logits, self._score()

    def read(self, candidate: Tensor) -> Tensor:
        return self._next


_BY_POSITION = {"previous": PreviousStateDrafter, "token": TokenStateDrafter}
