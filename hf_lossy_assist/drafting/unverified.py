"""Drafts without waiting for the target while a head on the draft model accepts the tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..acceptors import UnverifiedDrafting
from ..core.limits import BoundLimits
from ..core.messages import Commit, Draft, DraftCost
from ..core.recorders import StatsRecorder
from ..core.texts import Texts
from ..errors import LossyUnsupportedError
from ..theory import DenseDecoder
from .model import ModelDrafter


class Committing(Protocol):
    """The part of a call's progress that drafting without the target needs."""

    limits: BoundLimits | None
    ended: list[bool]

    def commit(self, rows: Sequence[int], tokens: Sequence[list[int]]) -> list[int]: ...

    def may_be_unverified(self, candidate: Tensor, drafted: int, texts: Texts) -> Tensor | None: ...


class UnverifiedDrafter(ModelDrafter):
    """Commits tokens while a head accepts them, and proposes the first one that it rejects.

    SPRINTER, algorithm 2. Every row drafts until its head rejects a token; drafts of rows that wait for the slowest
    are dropped. No token of the target's own follows a kept proposal, because theorem 1 would not hold with it.
    """

    def __init__(
        self, model: PreTrainedModel, request: UnverifiedDrafting, progress: Committing, **settings: Any
    ) -> None:
        super().__init__(model, 1, keep_hidden=True, **settings)
        self.request = request
        self.progress = progress
        self._scored = 0

    @abstractmethod
    def propose_one(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draft one token after the text.

        Return the tokens ``(B, 1)``, the processed logits of q ``(B, 1, V)``, and P(acceptable) ``(B,)``.
        """

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        before = self.calls, self.tokens, self._scored
        self.text, self.drafted = ids, []
        rows = range(len(ids))
        unverified, waits, logits, scores = [0] * len(ids), [False] * len(ids), [], []
        while not all(waits[i] or self.progress.ended[layout.rows[i]] for i in rows):
            _, processed, score = self.propose_one()
            logits.append(processed)
            scores.append(score)
            passing = {}
            for i, (drafted, passes) in enumerate(self._fetch(len(logits), score, layout)):
                if waits[i] or self.progress.ended[layout.rows[i]]:
                    continue
                if passes and unverified[i] < self.request.max_draft - 1:
                    unverified[i] += 1
                    passing[layout.rows[i]] = [drafted]
                else:
                    waits[i] = True
            if passing:
                self.progress.commit([*passing], [*passing.values()])
        return Draft(
            torch.cat(self.drafted, dim=-1),
            torch.cat(logits, dim=1).float(),
            lengths=tuple(n + waiting for n, waiting in zip(unverified, waits, strict=True)),
            unverified=tuple(unverified),
            bonus=False,
            scores=torch.stack(scores, dim=-1).to(ids.device),
            cost=DraftCost(self.calls - before[0], self.tokens - before[1], self._scored - before[2]),
        )

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
        head = stats.work["head_calls"] * 2 * self.request.head.config.width
        decided = sum(row.rounds for row in stats.rows.values())
        return {
            "paper": head + stats.work["draft_tokens"] * draft.published + decided * verified.published,
            "actual": head + stats.work["draft_tokens"] * draft.total + stats.work["target_tokens"] * verified.total,
        }

    def _fetch(self, drafted: int, score: Tensor, layout: Texts) -> list[tuple[int, bool]]:
        """Bring each row's newest token to the host, and whether it passes: the step's only synchronisation."""
        newest = self.drafted[-1][:, 0]
        passes = score.to(newest.device) > self.request.threshold
        if self.progress.limits is not None:
            # Rows that wait are ignored; the others have the same number of unverified tokens.
            passes &= self.progress.may_be_unverified(self.ids, drafted, layout)
        return [(token, bool(ok)) for token, ok in torch.stack([newest, passes.long()], dim=-1).tolist()]

    def _score(self) -> Tensor:
        state, head = self._hook.hidden[:, -1], self.request.head
        self._scored += len(state)
        return head.probability(state.to(head.weight.device).float())


class PreviousStateDrafter(UnverifiedDrafter):
    """Scores a token by the state that predicted it, so the head needs no further forward."""

    def propose_one(self) -> tuple[Tensor, Tensor, Tensor]:
        ids = self.ids
        self.runner.rewind(ids.shape[1] - 1)
        self.unread = ids[:, self.runner.seen :]
        token, logits, _ = self.step()
        return token, logits, self._score()


class TokenStateDrafter(UnverifiedDrafter):
    """Scores a token by the state that has read it, which takes one more forward per rejected token."""

    _next: Tensor | None = None

    def reset(self) -> None:
        super().reset()
        self._next = None

    def propose_one(self) -> tuple[Tensor, Tensor, Tensor]:
        ids = self.ids
        if self.runner.seen != ids.shape[1] or self._next is None:  # the model has not read the newest token
            self.runner.rewind(ids.shape[1] - 1)
            self._next = super().read(ids[:, self.runner.seen :])
        token, logits, _ = self.step()
        self._next = super().read(token)
        return token, logits, self._score()

    def read(self, tokens: Tensor) -> Tensor:
        return self._next


UNVERIFIED_DRAFTERS = {"previous": PreviousStateDrafter, "token": TokenStateDrafter}
"""Drafters by the position of the state that their head reads."""
