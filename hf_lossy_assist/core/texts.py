"""Texts in the making: their tokens in preallocated memory, and the rows of a batch in one rectangle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

ROOM = 256
"""Spare slots of a new buffer."""


class TokenBuffer:
    """The tokens of a text and of proposals after it; appending does not copy the text.

    All results are views. The next proposal overwrites what stands behind the text. ``ids`` ``(B, L)`` is copied as
    64-bit integers.

    Examples
    --------
    >>> text = TokenBuffer(torch.tensor([[5, 6]]))
    >>> text.with_draft(torch.tensor([[7, 8]]))
    tensor([[5, 6, 7, 8]])
    >>> text.advance(1)
    >>> text.with_draft(torch.tensor([[9]]))
    tensor([[5, 6, 7, 9]])
    """

    def __init__(self, ids: Tensor) -> None:
        rows, self.length = ids.shape
        self._block = torch.empty(rows, 2 * self.length + ROOM, dtype=torch.long, device=ids.device)
        self.ids.copy_(ids)

    @property
    def ids(self) -> Tensor:
        """``(B, L)`` the text."""
        return self._block.narrow(1, 0, self.length)

    def with_draft(self, tokens: Tensor) -> Tensor:
        """Write a proposal ``(B, n)`` after the text and return both ``(B, L + n)``; the text does not grow."""
        end = self._reserve(tokens.shape[1])
        self._block.narrow(1, self.length, tokens.shape[1]).copy_(tokens)
        return self._block.narrow(1, 0, end)

    def with_next(self, drafted: int, kept: Sequence[int], token: Tensor) -> Tensor:
        """Write ``token`` ``(B,)`` after the first ``kept`` of each row's ``drafted`` proposed tokens.

        Returns the text and the proposal ``(B, L + drafted + 1)``.
        """
        end = self._reserve(drafted + 1)
        if min(kept) == max(kept):
            self._block.narrow(1, self.length + kept[0], 1).copy_(token.unsqueeze(-1))
        else:
            at = torch.tensor(kept).to(token.device, non_blocking=True)
            self._block.narrow(1, self.length, drafted + 1).scatter_(1, at[:, None], token[:, None])
        return self._block.narrow(1, 0, end)

    def advance(self, count: int) -> None:
        """Add ``count`` tokens of the last proposal to the text."""
        self.length += count

    def _reserve(self, count: int) -> int:
        """Make room for ``count`` tokens after the text, and return where they end."""
        end = self.length + count
        if end > self._block.shape[1]:
            self._block = torch.cat([self._block, self._block.new_empty(len(self._block), end + ROOM)], dim=-1)
        return end


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
    def index(self) -> Tensor:
        return torch.tensor(self.rows, device=self.device)

    @cached_property
    def shifts(self) -> Tensor:
        """``(B',)`` by how many slots each row moves to the right."""
        return torch.tensor([self.width - end for end in self.ends], device=self.device)

    def sources(self, slots: int) -> Tensor:
        """Return ``(B', slots)`` where each of the first slots comes from; negative for new padding."""
        return torch.arange(slots, device=self.device) - self.shifts[:, None]

    def known(self, slots: int) -> int:
        """Return the new slot up to which all rows are known, if they were up to ``slots`` or their newest token."""
        return min(min(slots, end - 1) + self.width - end for end in self.ends)

    def take(self, values: Tensor, fill: int) -> Tensor:
        """Move ``(…, B, S)`` values, with ``fill`` in new padding."""
        if values.shape[-2] == 1:  # shared by all rows
            values = values.expand(*values.shape[:-2], self.rows[-1] + 1, -1)
        sources = self.sources(self.width).to(values.device)
        kept = values.index_select(-2, self.index.to(values.device))
        return kept.gather(-1, sources.clamp(min=0).expand(kept.shape[:-1] + sources.shape[-1:])).masked_fill(
            sources < 0, fill
        )


@dataclass(eq=False)
class BatchLayout:
    """Which text stands where: every row ends in the last column, with padding on its left.

    A row's text is the prompt, with the padding that it came with, and the generated tokens: what plain
    ``generate()`` shows to processors and criteria. Neighbouring slots of a row are one position apart, as sliding
    windows and position biases require.
    """

    rows: list[int]  # the rows that have not ended, by their number in the batch
    lengths: list[int]  # their texts' lengths
    batch: int  # rows in the beginning
    pad: int  # the padding token
    ended: dict[int, Tensor] = field(default_factory=dict)  # the texts of the other rows

    @classmethod
    def of(cls, ids: Tensor, pad: int) -> BatchLayout:
        batch, length = ids.shape
        return cls(list(range(batch)), [length] * batch, batch, pad)

    @property
    def width(self) -> int:
        return max(self.lengths, default=0)

    @property
    def left_padding(self) -> list[int]:
        """Columns of padding before each row's text."""
        width = self.width
        return [width - length for length in self.lengths]

    @property
    def untouched(self) -> bool:
        """Whether the rectangle is the batch as plain ``generate()`` would have it."""
        return len(self.rows) == self.batch and min(self.lengths) == max(self.lengths)

    def grow(self, extended: Tensor, counts: Sequence[int], ended: Sequence[bool]) -> RowShift | None:
        """Add a round: ``counts`` tokens per row from ``extended`` ``(B, W + n + 1)``.

        Returns how rows move into the next rectangle, or None when all stay in place or have ended.
        """
        if not any(ended) and min(counts) == max(counts):
            self.lengths = [length + counts[0] for length in self.lengths]
            return None
        width = self.width
        ends = [width + count for count in counts]
        for i, (row, padding) in enumerate(zip(self.rows, self.left_padding, strict=True)):
            if ended[i]:
                self.ended[row] = extended[i, padding : ends[i]].clone()
        stay = [i for i in range(len(self.rows)) if not ended[i]]
        lengths = [self.lengths[i] + counts[i] for i in stay]
        changes = len(stay) < len(self.rows) or any(max(lengths) - width != counts[i] for i in stay)
        self.rows = [self.rows[i] for i in stay]
        self.lengths = lengths
        if not changes or not stay:
            return None
        return RowShift(tuple(stay), tuple(ends[i] for i in stay), self.width, extended.device)

    def texts(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return ``(B, T)`` all texts, cut to their lengths and padded on the right.

        ``ids`` ``(B', W)`` are the rows that have not ended.
        """
        going_on = zip(self.rows, ids, self.left_padding, strict=False)
        texts = self.ended | {row: text[padding:] for row, text, padding in going_on}
        texts = [texts[row][: lengths[row]] for row in range(self.batch)]
        return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=self.pad)
