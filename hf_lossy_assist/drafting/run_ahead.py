"""Drafting that does not wait for the target while a head on the draft model finds the tokens acceptable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..acceptors import RunAhead
from ..commit import Commit
from ..errors import LossyUnsupportedError
from ..messages import Draft, DraftCost
from ..theory import DenseDecoder, verifier_flops
from .model import ModelDrafter

if TYPE_CHECKING:
    from ..decoding.batch_layout import BatchLayout
    from ..decoding.progress import Progress
    from ..decoding.recorders import StatsRecorder


class RunAheadDrafter(ModelDrafter):
    """Commits tokens while a head lets them pass, and proposes the first that it does not let pass.

    SPRINTER, algorithm 2. Every row runs until its head rejects a token; rows that wait for the slowest are drafted on
    for nothing. The target's own token does not follow a proposal that is kept: with it, theorem 1 would not hold.

    Parameters
    ----------
    model
        The draft model.
    request
        The head, which reads the model's state at one position; its threshold; and how far to run.
    progress
        Where tokens become part of the output.
    **settings
        As for :class:`ModelDrafter`.
    """

    def __init__(self, model: PreTrainedModel, request: RunAhead, progress: Progress, **settings: Any) -> None:
        super().__init__(model, 1, keep_hidden=True, **settings)
        self.request = request
        self.progress = progress
        self._scored = 0

    @staticmethod
    def of(model: PreTrainedModel, request: RunAhead, progress: Progress, **settings: Any) -> RunAheadDrafter:
        """Return the drafter for the position that a head reads."""
        return _BY_POSITION[request.head.config.position](model, request, progress, **settings)

    @abstractmethod
    def propose_one(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draft one token after the text.

        Returns
        -------
        tuple
            The tokens ``(B, 1)``, the processed logits of q ``(B, 1, V)``, and P(acceptable) ``(B,)``.
        """

    def propose(self, ids: Tensor, layout: BatchLayout, rooms: Sequence[int]) -> Draft:
        before = self.calls, self.tokens, self._scored
        self.text.begin(ids)
        rows = range(len(ids))
        trusted, waits, logits, scores = [0] * len(ids), [False] * len(ids), [], []
        while not all(waits[i] or self.progress.ended(layout.rows[i]) for i in rows):
            token, processed, score = self.propose_one()
            self.text.append(token)
            logits.append(processed)
            scores.append(score)
            passing = []
            for i, (drafted, passes) in enumerate(self._fetch(self.text.ids, len(logits), score, layout)):
                if waits[i] or self.progress.ended(layout.rows[i]):
                    continue
                if passes and trusted[i] < self.request.max_draft - 1:
                    passing.append((i, drafted))
                else:
                    waits[i] = True
            for i, _ in passing:
                trusted[i] += 1
            if passing:
                self.progress.commit([layout.rows[i] for i, _ in passing], [[drafted] for _, drafted in passing])
        return Draft(
            self.text.drafted,
            torch.cat(logits, dim=1).float(),
            lengths=tuple(n + waiting for n, waiting in zip(trusted, waits, strict=True)),
            trusted=tuple(trusted),
            bonus=False,
            scores=torch.stack(scores, dim=-1).to(ids.device),
            cost=DraftCost(self.calls - before[0], self.tokens - before[1], self._scored - before[2]),
        )

    def observe(self, commit: Commit) -> None:
        if commit.shift is not None:
            self.forwards.move(commit.shift, commit.ids)
            self.text.forget()
            return
        whole = min(commit.counts) == commit.drafted and commit.accepted == commit.counts
        if not whole:  # what has been read is not what the texts go on with
            self.forwards.rewind(commit.start + min(commit.counts) - 1)

    def flops(self, target: PreTrainedModel, length: int, stats: StatsRecorder) -> Mapping[str, float]:
        """Count all forwards, at the mean context of texts of a length; nothing where an architecture isn't known.

        ``"actual"`` counts every token that went through the target; ``"paper"`` only those that it decided.
        """
        try:
            draft, verified = (DenseDecoder.of_model(x).forward(1, length // 2) for x in (self.model, target))
        except LossyUnsupportedError:
            return {}
        head = stats.work["head_calls"] * verifier_flops(self.request.head.config.width)
        decided = sum(row.rounds for row in stats.rows)
        return {
            "paper": head + stats.work["draft_tokens"] * draft.published + decided * verified.published,
            "actual": head + stats.work["draft_tokens"] * draft.total + stats.work["target_tokens"] * verified.total,
        }

    def _fetch(self, candidate: Tensor, drafted: int, score: Tensor, layout: BatchLayout) -> list[tuple[int, bool]]:
        """Bring every row's newest token over, and whether it may pass; the step's only synchronisation."""
        passes = score.to(candidate.device) > self.request.threshold
        # Rows that wait have been passed by, and do not matter here: the others have the same number of tokens ahead.
        if (allowed := self.progress.may_be_trusted(candidate, drafted, layout.rows)) is not None:
            passes = passes & allowed
        return [(token, bool(ok)) for token, ok in torch.stack([candidate[:, -1], passes.long()], dim=-1).tolist()]

    def _score(self) -> Tensor:
        state, head = self._hook.hidden[:, -1], self.request.head
        self._scored += len(state)
        return head.probability(state.to(head.weight.device).float())


class PreviousStateDrafter(RunAheadDrafter):
    """Scores a token by the state that predicted it: no forward that drafting does not need anyway."""

    def propose_one(self) -> tuple[Tensor, Tensor, Tensor]:
        self.forwards.rewind(self.text.length - 1)
        token, logits, _ = self.step()
        return token, logits, self._score()


class TokenStateDrafter(RunAheadDrafter):
    """Scores a token by the state that has read it: one forward more per token that is rejected."""

    _next: Tensor | None = None

    def reset(self) -> None:
        super().reset()
        self._next = None

    def propose_one(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.forwards.seen != self.text.length or self._next is None:  # the last token was not the one that was read
            self.forwards.rewind(self.text.length - 1)
            self._next = super().read()
        token, logits, _ = self.step()
        self._next = self.read_tokens(self.vocabulary.context(token))
        return token, logits, self._score()

    def read(self) -> Tensor:
        return self._next


_BY_POSITION = {"previous": PreviousStateDrafter, "token": TokenStateDrafter}
