"""Texts in the making: their tokens in preallocated memory, and how the rows of a batch move."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .transfers import to_device

ROOM = 256
"""Spare slots of a new buffer."""


class Texts:
    """The texts of a batch in the making: where each stands, and their tokens, in preallocated memory.

    A row's text is its prompt, with the padding that it came with, and the generated tokens: what plain
    ``generate()`` shows to processors and criteria. All rows end in the last column of one rectangle, with padding on
    the left of shorter ones, so neighbouring slots of a row are one position apart, as sliding windows and position
    biases require. A row that has ended leaves the rectangle.

    Appending does not copy the texts: results are views, and the next proposal overwrites what stands behind the
    texts. ``ids`` ``(B, L)`` is copied as 64-bit integers; ``first`` is the number of its first row in the call,
    and the models know ``size`` tokens.

    Attributes
    ----------
    rows
        The numbers of the rows that have not ended.
    lengths
        The lengths of their texts.
    width
        The columns of the rectangle.
    prompt
        The columns of the prompts.
    batch
        How many rows there were in the beginning.
    pad, filler
        The padding token; what stands in its place where models read it, which may lack it.
    ended
        The texts of the rows that have ended, by number.

    Examples
    --------
    >>> texts = Texts(torch.tensor([[5, 6]]))
    >>> extended = texts.with_draft(torch.tensor([[7, 8]]))
    >>> extended
    tensor([[5, 6, 7, 8]])
    >>> texts.grow(extended, [3], [False])
    >>> texts.with_draft(torch.tensor([[9]]))
    tensor([[5, 6, 7, 9]])
    """

    def __init__(self, ids: Tensor, pad: int = 0, first: int = 0, size: int = sys.maxsize) -> None:
        self.batch, self.prompt = ids.shape
        self.pad, self.filler = pad, pad if 0 <= pad < size else 0
        self.rows = list(range(first, first + self.batch))
        self.lengths = [self.prompt] * self.batch
        self.ended: dict[int, Tensor] = {}
        self.device = ids.device
        self._first = first
        self._hold(ids)

    def _hold(self, ids: Tensor) -> None:
        rows, self.width = ids.shape
        self._block = torch.empty(rows, 2 * self.width + ROOM, dtype=torch.long, device=ids.device)
        self.ids.copy_(ids)

    @property
    def ids(self) -> Tensor:
        """``(B', W)`` the rectangle."""
        return self._block.narrow(1, 0, self.width)

    @property
    def left_padding(self) -> list[int]:
        """Columns of padding before each row's text."""
        return [self.width - length for length in self.lengths]

    @property
    def untouched(self) -> bool:
        """Whether the rectangle is the batch as plain ``generate()`` would have it."""
        return len(self.rows) == self.batch and min(self.lengths) == max(self.lengths)

    def with_draft(self, tokens: Tensor) -> Tensor:
        """Write a proposal ``(B', n)`` after the texts and return both ``(B', W + n)``; the texts do not grow."""
        end = self._reserve(tokens.shape[1])
        self._block.narrow(1, self.width, tokens.shape[1]).copy_(tokens)
        return self._block.narrow(1, 0, end)

    def with_next(self, drafted: int, kept: Sequence[int], token: Tensor) -> Tensor:
        """Write ``token`` ``(B',)`` after the first ``kept`` of each row's ``drafted`` proposed tokens.

        Returns the texts and the proposal ``(B', W + drafted + 1)``.
        """
        end = self._reserve(drafted + 1)
        if min(kept) == max(kept):
            self._block.narrow(1, self.width + kept[0], 1).copy_(token.unsqueeze(-1))
        else:
            at = to_device(kept, token.device)
            self._block.narrow(1, self.width, drafted + 1).scatter_(1, at[:, None], token[:, None])
        return self._block.narrow(1, 0, end)

    def _reserve(self, count: int) -> int:
        """Make room for ``count`` tokens after the texts, and return where they end."""
        end = self.width + count
        if end > self._block.shape[1]:
            self._block = torch.cat([self._block, self._block.new_empty(len(self._block), end + ROOM)], dim=-1)
        return end

    def grow(self, extended: Tensor, lengths: Sequence[int], ended: Sequence[bool]) -> RowShift | None:
        """Let the texts have new ``lengths``; those that have ``ended`` leave.

        ``extended`` ``(B', W + n + 1)`` are the texts with all of a round's tokens.

        Returns how rows move into the next rectangle, or None when all stay in place or have ended.
        """
        width = self.width
        ends = [width + new - old for new, old in zip(lengths, self.lengths, strict=True)]
        if not any(ended) and min(ends) == max(ends):
            self.lengths, self.width = list(lengths), ends[0]
            return None
        for i, (row, padding) in enumerate(zip(self.rows, self.left_padding, strict=True)):
            if ended[i]:
                self.ended[row] = extended[i, padding : ends[i]].clone()
        stay = [i for i in range(len(self.rows)) if not ended[i]]
        whole = len(stay) == len(self.rows)
        self.rows = [self.rows[i] for i in stay]
        self.lengths = [lengths[i] for i in stay]
        if not stay:
            self.width = min(ends)  # behind it, rows have slots that nothing was written to
            return None
        wider = max(self.lengths)
        if whole and all(end == wider for end in ends):
            self.width = wider
            return None
        shift = RowShift(tuple(stay), tuple(ends[i] for i in stay), wider, extended.device)
        self._hold(shift.moved(extended, self.filler))
        return shift

    def finish(self, lengths: Sequence[int]) -> Tensor:
        """Return ``(B, T)`` all texts, cut to ``lengths`` and padded on the right."""
        going_on = zip(self.rows, self.ids, self.left_padding, strict=False)
        texts = self.ended | {row: text[padding:] for row, text, padding in going_on}
        texts = [texts[self._first + i][:length] for i, length in enumerate(lengths)]
        return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=self.pad)


class GrowingTensor:
    """A tensor with one value per token of a text ``(…, L)``, extended on demand by :func:`ones` or :func:`counting`.

    Examples
    --------
    >>> GrowingTensor(torch.tensor([[0, 0, 1]]), counting).between(0, 6)
    tensor([[0, 0, 1, 2, 3, 4]])
    """

    def __init__(self, values: Tensor, go_on: Callable[[Tensor, int], Tensor]) -> None:
        self._block = values
        self._go_on = go_on

    def between(self, start: int, end: int) -> Tensor:
        missing = end - self._block.shape[-1]
        if missing > 0:
            more = self._go_on(self._block, missing + end + ROOM)
            self._block = torch.cat([self._block, more], dim=-1)
        return self._block.narrow(-1, start, end - start)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts share from the beginning."""
    # Bisects by comparing slices, which is fast.
    return bisect_left(range(min(len(a), len(b))), True, key=lambda n: a[: n + 1] != b[: n + 1])


def ones(values: Tensor, count: int) -> Tensor:
    """Return the next ``count`` values of a mask: all visible."""
    return values.new_ones(*values.shape[:-1], count)


def counting(values: Tensor, count: int) -> Tensor:
    """Return the next ``count`` positions."""
    return values[..., -1:] + torch.arange(1, count + 1, dtype=values.dtype, device=values.device)


@dataclass(frozen=True, eq=False)
class RowShift:
    """How rows move from one round's rectangle to the next; rows that have ended leave."""

    rows: tuple[int, ...]  # the rows that stay, in the old numbering
    ends: tuple[int, ...]  # per row that stays: the slot after its newest token, in the old rectangle
    width: int  # the slot after every row's newest token, in the new rectangle
    device: torch.device

    @cached_property
    def _both(self) -> Tensor:
        """``(2, B')`` the rows that stay, and by how many slots each moves to the right."""
        return to_device([self.rows, [self.width - end for end in self.ends]], self.device)

    @property
    def index(self) -> Tensor:
        return self._both[0]

    def sources(self, slots: int) -> Tensor:
        """Return ``(B', slots)`` where each of the first slots comes from; negative for new padding."""
        return torch.arange(slots, device=self.device) - self._both[1, :, None]

    def known(self, slots: int) -> int:
        """Return the new slot up to which all rows are known, if they were up to ``slots`` or their newest token."""
        return min(min(slots, end - 1) + self.width - end for end in self.ends)

    def of_rows(self, values: Tensor) -> Tensor:
        """Return of ``(…, B, S)`` values those of the rows that stay; what all rows share is nobody's own."""
        return values if values.shape[-2] == 1 else values.index_select(-2, self.index.to(values.device))

    def moved(self, values: Tensor, fill: int) -> Tensor:
        """Move ``(…, B, S)`` values, with ``fill`` in new padding."""
        sources = self.sources(self.width).to(values.device)
        kept = self.of_rows(values)
        kept = kept.expand(*kept.shape[:-2], len(self.rows), -1)
        return kept.gather(-1, sources.clamp(min=0).expand(kept.shape[:-1] + sources.shape[-1:])).masked_fill(
            sources < 0, fill
        )
