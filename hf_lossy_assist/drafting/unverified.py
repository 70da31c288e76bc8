"""Drafts tokens that a head on the draft model scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..core.messages import Commit, DraftCost
from ..core.recorders import StatsRecorder
from ..errors import LossyUnsupportedError
from ..heads import VerifierHead
from ..theory import DenseDecoder
from .model import ModelDrafter


class UnverifiedDrafter(ModelDrafter):
    """Drafts one token at a time, with a head's score of it."""

    def __init__(self, model: PreTrainedModel, head: VerifierHead, **settings: Any) -> None:
        self.head = head
        super().__init__(model, 1, keep_hidden=True, **settings)

    def begin(self, ids: Tensor) -> None:
        self.text, self.drafted, self.unread = ids, [], ids
        self._before = self.calls, self.tokens
        self._scored = 0

    @property
    def width(self) -> int:
        """Columns of the text and of the tokens drafted after it."""
        return self.text.shape[1] + len(self.drafted)

    @property
    def cost(self) -> DraftCost:
        """The cost of all tokens since :meth:`begin`."""
        return DraftCost(self.calls - self._before[0], self.tokens - self._before[1], self._scored)

    @abstractmethod
    def propose_one(self) -> tuple[Tensor, Tensor]:
        """Draft one token; return the processed logits of q ``(B, 1, V)``, and P(acceptable) ``(B,)``."""

    def keep(self, count: int) -> None:
        """Forget all but the first ``count`` tokens since :meth:`begin`."""
        del self.drafted[count:]
        self.runner.rewind(self.width)

    def observe(self, commit: Commit) -> None:
        if commit.shift is not None:
            self.runner.move(commit.shift, commit.ids)
            return
        whole = min(commit.counts) == commit.drafted and commit.accepted == commit.counts
        if not whole:  # the texts go on with other tokens than the draft model has read
            self.runner.rewind(commit.start + min(commit.counts) - 1)

    def flops(self, target: PreTrainedModel, length: int, stats: StatsRecorder) -> Mapping[str, float]:
        """Count all forwards, at the mean context of texts of a length; empty for an unknown architecture.

        ``"actual"`` counts every token that went through the target, ``"paper"`` only those that it decided.
        """
        try:
            draft, verified = (DenseDecoder.of_model(x).forward(1, length // 2) for x in (self.model, target))
        except LossyUnsupportedError:
            return {}
        head = stats.work["head_calls"] * 2 * self.head.config.width
        decided = sum(row.rounds for row in stats.rows.values())
        return {
            "paper": head + stats.work["draft_tokens"] * draft.published + decided * verified.published,
            "actual": head + stats.work["draft_tokens"] * draft.total + stats.work["target_tokens"] * verified.total,
        }

    def _score(self) -> Tensor:
        state = self._hook.hidden[:, -1]
        self._scored += len(state)
        return self.head.probability(state.to(self.head.weight.device).float()).to(self.text.device)


class PreviousStateDrafter(UnverifiedDrafter):
    """Scores a token by the state that predicted it, so the head needs no further forward."""

    def propose_one(self) -> tuple[Tensor, Tensor]:
        self.runner.rewind(self.width - 1)
        if not self.drafted or self.runner.seen < self.width - 1:  # else the newest token alone is unread
            self.unread = self.ids[:, self.runner.seen :]
        _, logits, _ = self.draft_one()
        return logits, self._score()


class TokenStateDrafter(UnverifiedDrafter):
    """Scores a token by the state that has read it, which takes one more forward per rejected token."""

    _next: Tensor | None = None

    def reset(self) -> None:
        super().reset()
        self._next = None

    def room(self, ids: Tensor) -> int:
        return max(0, super().room(ids) - 1)  # the last drafted token is read too

    def keep(self, count: int) -> None:
        super().keep(count)
        self._next = None

    def propose_one(self) -> tuple[Tensor, Tensor]:
        if self.runner.seen != self.width or self._next is None:  # the model has not read the newest token
            self.runner.rewind(self.width - 1)
            self._next = super().read(self.ids[:, self.runner.seen :])
        token, logits, _ = self.draft_one()
        self._next = super().read(token)
        return logits, self._score()

    def read(self, tokens: Tensor) -> Tensor:
        return self._next


UNVERIFIED_DRAFTERS = {"previous": PreviousStateDrafter, "token": TokenStateDrafter}
"""Drafters by the position of the state that their head reads."""
