"""Drafts tokens ahead of the target, which a head on the draft model scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.messages import Commit, Draft, DraftCost
from ..core.texts import Texts
from ..heads import VerifierHead
from .chain import Sampler, Source, SourceDrafter


class RunAheadDrafter(SourceDrafter):
    """Drafts one token at a time, with a head's score of it: by the state that predicted it, for which it has been run.

    Attributes
    ----------
    drafted
        The tokens ``(B, 1)`` since :meth:`begin`.
    """

    def __init__(self, source: Source, head: VerifierHead, sampler: Sampler) -> None:
        super().__init__(source, sampler)
        self.head = head

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        return Draft.empty(ids)  # of a run, the target sees one token

    def room(self, ids: Tensor) -> int:
        """Return how many tokens it can draft after ``ids`` ``(B, W)``."""
        return self.source.room(ids)

    def begin(self, ids: Tensor) -> None:
        """Begin a run after ``ids`` ``(B, W)``."""
        self._text, self.drafted = ids, []
        self._before = self.source.calls, self.source.tokens
        self._unread = self.source.begin(ids)

    @property
    def ids(self) -> Tensor:
        """``(B, W + n)`` the text and the tokens drafted after it."""
        return torch.cat([self._text, *self.drafted], dim=-1)

    @property
    def cost(self) -> DraftCost:
        """The cost of all tokens since :meth:`begin`."""
        return DraftCost(self.source.calls - self._before[0], self.source.tokens - self._before[1])

    def propose_one(self) -> tuple[Tensor, Tensor]:
        """Draft one token; return the processed logits of q ``(B, 1, V)``, and P(acceptable) ``(B,)``."""
        logits = self._choose(self.source.logits(self._unread))
        self._unread = self.drafted[-1]
        return logits, self._score()

    def keep(self, count: int) -> None:
        """End the run, and forget all but its first ``count`` tokens."""
        del self.drafted[count:]
        self.source.rewind(self._text.shape[1] + count - 1)

    def observe(self, commit: Commit) -> None:
        # A draft that was kept whole goes on, also with what has been read of its last token.
        if commit.shift is not None or min(commit.counts) < commit.drafted or commit.accepted != commit.counts:
            self._follow(commit)

    def _follow(self, commit: Commit) -> None:
        self.source.learn(commit)

    def _choose(self, logits: Tensor) -> Tensor:
        token, logits, _ = self.sampler(logits, self._text, self.drafted)
        self.drafted.append(token)
        return logits

    def _score(self) -> Tensor:
        state = self.source.hidden[:, -1]
        return self.head.probability(state.to(self.head.weight.device).float()).to(self._text.device)


class TokenStateDrafter(RunAheadDrafter):
    """Scores a token by the state that has read it, which takes one more forward per rejected token."""

    _next: Tensor | None = None  # the logits after the newest token, where the model has read it

    def room(self, ids: Tensor) -> int:
        return max(0, super().room(ids) - 1)  # the last drafted token is read too

    def begin(self, ids: Tensor) -> None:
        super().begin(ids)
        if self._next is None:
            self._next = self.source.logits(self._unread)

    def propose_one(self) -> tuple[Tensor, Tensor]:
        logits = self._choose(self._next)
        self._next = self.source.logits(self.drafted[-1])
        return logits, self._score()

    def keep(self, count: int) -> None:
        super().keep(count)
        self._next = None

    def _follow(self, commit: Commit) -> None:
        super()._follow(commit)
        self._next = None


RUNS_AHEAD = {"previous": RunAheadDrafter, "token": TokenStateDrafter}
"""Strategies by the position of the state that their head reads."""
