"""Drafters propose tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from ..core.distributions import point_mass
from ..core.messages import Commit, Draft, DraftCost
from ..core.texts import Texts


class Drafter(ABC):
    """Proposes tokens for the rows of a batch."""

    @abstractmethod
    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        """Propose tokens.

        Parameters
        ----------
        ids
            ``(B, W)`` the texts, which all end in the last column.
        layout
            Where the rows stand.
        remaining
            How many more tokens fit into each text, the target's own token included.
        """

    def forget(self, ids: Tensor) -> None:
        """Forget what was drafted after ``ids`` ``(B, W)``."""
        return

    def observe(self, commit: Commit) -> None:
        """Learn from a round, and follow its rows."""
        return

    def in_use(self) -> AbstractContextManager[None]:
        """Drafts are asked for inside this block only."""
        return nullcontext()


class PerRowDrafter(Drafter):
    """Gives every row a drafter of its own, which sees only that row's text."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = drafters

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        texts = [ids[i : i + 1, padding:] for i, padding in enumerate(layout.left_padding)]
        drafters = [self.drafters[row] for row in layout.rows]
        drafts = [x.propose(text, layout, [room]) for x, text, room in zip(drafters, texts, remaining, strict=True)]
        return stacked(drafts, layout.filler)

    def observe(self, commit: Commit) -> None:
        for i, row in enumerate(commit.rows):
            self.drafters[row].observe(commit.of_row(i))


def stacked(drafts: Sequence[Draft], pad: int) -> Draft:
    """Return the drafts of single rows as one; where some know q, the others are point masses."""
    lengths = tuple(map(len, drafts))
    n = max(lengths)
    logits = [x.logits for x in drafts]
    if (known := next((x for x in logits if x is not None), None)) is not None:
        logits = [point_mass(x.tokens, known).log() if x.logits is None else x.logits for x in drafts]
    return Draft(
        _stacked([x.tokens for x in drafts], n, pad),
        _stacked(logits, n, 0.0),
        _stacked([x.hidden for x in drafts], n, 0.0),
        None if min(lengths) == n else lengths,
        cost=DraftCost(sum(x.cost.calls for x in drafts), sum(x.cost.tokens for x in drafts)),
    )


def _stacked(parts: Sequence[Tensor | None], n: int, fill: float) -> Tensor | None:
    """Stack ``(1, n_i, …)`` parts into ``(B, n, …)``; None where all are None."""
    given = next((part for part in parts if part is not None), None)
    if given is None:
        return None
    out = given.new_full((len(parts), n, *given.shape[2:]), fill)
    for i, part in enumerate(parts):
        if part is not None:
            out[i, : part.shape[1]] = part[0]
    return out
