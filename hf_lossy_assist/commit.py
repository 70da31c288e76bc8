"""The last of the messages: what a round has added to the texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .messages import Verification

if TYPE_CHECKING:
    from .decoding.batch_layout import RowShift


@dataclass(frozen=True, eq=False)
class Commit:
    """Commit → target and drafter: what a round has added to the texts.

    Attributes
    ----------
    ids
        ``(B, W + n + 1)`` the texts with the whole round.
    start
        W, the texts' width before.
    drafted
        n.
    accepted
        Drafted tokens that each row kept, those committed without the target included.
    counts
        Tokens that each row's text has grown by.
    rows
        The rows' numbers in the batch.
    padding
        Columns of padding before each row's text.
    verification
        What the target said, or None where it was not asked.
    shift
        How the rows move into the next round's rectangle; None where they stay where they are.
    path
        ``(B, k)`` the columns of a tree that the texts go on with, in their order; shorter paths end with any columns.
        None for a chain, of which a prefix stays.
    """

    ids: Tensor
    start: int
    drafted: int
    accepted: tuple[int, ...]
    counts: tuple[int, ...]
    rows: tuple[int, ...]
    padding: tuple[int, ...]
    verification: Verification | None
    shift: RowShift | None = None
    path: Tensor | None = None

    @property
    def width(self) -> int:
        """The texts' width after it, where rows stay where they are."""
        return self.start + max(self.counts)

    def text(self, i: int) -> Tensor:
        """``(1, L)`` the text of the i-th row after it."""
        return self.ids[i : i + 1, self.padding[i] : self.start + self.counts[i]]
