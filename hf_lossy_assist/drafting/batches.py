"""Drafting for the rows of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..decoding.batch_layout import Frame, Move
from ..messages import Draft
from . import draft, proposal
from .model import ModelDrafter


class BatchDrafter(ABC):
    """Proposes tokens for every row of a frame."""

    @abstractmethod
    def draft(self, ids: Tensor, frame: Frame, rooms: Sequence[int], acceptor: Acceptor) -> Draft:
        """Propose up to ``rooms[i]`` tokens after row i of ``ids`` ``(B, W)``."""

    @abstractmethod
    def follow(self, move: Move, mask: Tensor | None) -> None:
        """Keep up with rows that shift or leave; ``mask`` ``(B', W')`` is the attention mask after that."""

    @abstractmethod
    def learn(self, rows: Sequence[int], ids: Tensor, scores: Tensor, accepted: Sequence[int]) -> None:
        """Take note of how many tokens each row kept; ``rows`` are their numbers in the batch.

        ``ids`` ``(B, W + n + 1)`` and ``scores`` ``(B, n + 1, V)`` are those of the whole round.
        """

    @property
    @abstractmethod
    def calls(self) -> int:
        """Forwards of the draft model so far."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens that went through them."""


class Together(BatchDrafter):
    """One draft model's forwards over all rows.

    Parameters
    ----------
    drafter
        Drafts with the model.
    """

    def __init__(self, drafter: ModelDrafter) -> None:
        self.drafter = drafter

    def draft(self, ids: Tensor, frame: Frame, rooms: Sequence[int], acceptor: Acceptor) -> Draft:
        if max(rooms) <= 0:
            return Draft(ids[:, :0])
        candidate, logits = self.drafter.extend(ids, max(rooms))
        tokens = candidate[:, ids.shape[1] :]
        lengths = self.drafter.lengths
        if lengths is not None or min(rooms) < tokens.shape[1]:
            full = lengths or (tokens.shape[1],) * len(rooms)
            lengths = tuple(min(length, max(room, 0)) for length, room in zip(full, rooms, strict=True))
        return proposal(self.drafter, tokens, logits, acceptor, lengths)

    def follow(self, move: Move, mask: Tensor | None) -> None:
        self.drafter.move(move, mask)

    def learn(self, rows: Sequence[int], ids: Tensor, scores: Tensor, accepted: Sequence[int]) -> None:
        self.drafter.update_candidate_strategy(ids, scores, round(sum(accepted) / len(accepted)))

    @property
    def calls(self) -> int:
        return self.drafter.calls

    @property
    def tokens(self) -> int:
        return self.drafter.tokens


class Apart(BatchDrafter):
    """A drafter of its own for every row, which sees that row's text.

    Parameters
    ----------
    make
        From a row's number to its drafter.
    batch
        Rows.
    """

    def __init__(self, make: Callable[[int], CandidateGenerator], batch: int) -> None:
        self.drafters = [make(row) for row in range(batch)]

    def draft(self, ids: Tensor, frame: Frame, rooms: Sequence[int], acceptor: Acceptor) -> Draft:
        texts = [ids[i : i + 1, extra:] for i, extra in enumerate(frame.extras)]
        drafters = [self.drafters[row] for row in frame.rows]
        drafts = [draft(*args, acceptor) for args in zip(drafters, texts, rooms, strict=True)]
        lengths = tuple(map(len, drafts))
        n = max(lengths)
        tokens = _stacked([x.tokens for x in drafts], n, frame.pad)
        if n == 0:
            return Draft(tokens)
        return Draft(
            tokens,
            _stacked([x.logits for x in drafts], n, 0.0),
            _stacked([x.hidden for x in drafts], n, 0.0),
            None if min(lengths) == n else lengths,
        )

    def follow(self, move: Move, mask: Tensor | None) -> None:
        return

    def learn(self, rows: Sequence[int], ids: Tensor, scores: Tensor, accepted: Sequence[int]) -> None:
        for i, (row, count) in enumerate(zip(rows, accepted, strict=True)):
            self.drafters[row].update_candidate_strategy(ids[i : i + 1].clone(), scores[i : i + 1], count)

    @property
    def calls(self) -> int:
        return sum(getattr(drafter, "calls", 0) for drafter in self.drafters)

    @property
    def tokens(self) -> int:
        return sum(getattr(drafter, "tokens", 0) for drafter in self.drafters)


def _stacked(parts: Sequence[Tensor | None], n: int, fill: float) -> Tensor | None:
    """Stack ``(1, n_i, …)`` parts into ``(B, n, …)``; None where nobody has any."""
    given = next((part for part in parts if part is not None), None)
    if given is None:
        return None
    out = given.new_full((len(parts), n, *given.shape[2:]), fill)
    for i, part in enumerate(parts):
        if part is not None:
            out[i, : part.shape[1]] = part[0]
    return out


__all__ = ["Apart", "BatchDrafter", "Together"]
