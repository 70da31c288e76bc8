"""The rows of a batch, which grow at different speeds, in one rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..compat import PREFIX_FREE_PROCESSORS, process_rows_alike


@dataclass(frozen=True, eq=False)
class RowShift:
    """From the rectangle of one round to that of the next: rows shift, and those that have ended leave.

    Attributes
    ----------
    rows
        The rows that stay, as they were numbered before.
    ends
        Per row that stays: the slot after its newest token, before.
    width
        The slot after every row's newest token, now.
    device
        Of the tokens.
    """

    rows: tuple[int, ...]
    ends: tuple[int, ...]
    width: int
    device: torch.device

    @cached_property
    def index(self) -> Tensor:
        """``(B',)`` the rows that stay."""
        return torch.tensor(self.rows, device=self.device)

    @cached_property
    def shifts(self) -> Tensor:
        """``(B',)`` by how many slots each row moves to the right."""
        return torch.tensor([self.width - end for end in self.ends], device=self.device)

    def sources(self, slots: int) -> Tensor:
        """Return ``(B', slots)`` where each of the first slots comes from; negative where it is new padding."""
        return torch.arange(slots, device=self.device) - self.shifts[:, None]

    def known(self, slots: int) -> int:
        """Return up to which new slot every row is known, if each was known up to ``slots`` or its newest token."""
        return min(min(slots, end - 1) + self.width - end for end in self.ends)

    def take(self, values: Tensor, fill: int) -> Tensor:
        """Move ``(…, B, S)`` values, with ``fill`` in new padding."""
        if values.shape[-2] == 1:  # the same for all rows
            values = values.expand(*values.shape[:-2], self.rows[-1] + 1, -1)
        sources = self.sources(self.width).to(values.device)
        kept = values.index_select(-2, self.index.to(values.device))
        return kept.gather(-1, sources.clamp(min=0).expand(kept.shape[:-1] + sources.shape[-1:])).masked_fill(
            sources < 0, fill
        )


@dataclass(eq=False)
class BatchLayout:
    """Which text stands where: every row ends in the last column, and what it lacks to the left is padding.

    A row's own text is the whole prompt, with the padding that it came with, and what was generated: what plain
    ``generate()`` would show to processors and criteria. Slots of one row are one position apart, as windows and
    position biases want it.

    Attributes
    ----------
    rows
        The rows that have not ended, by their number in the batch.
    lengths
        Their texts' lengths.
    batch
        Rows in the beginning.
    pad
        The padding token.
    ended
        The texts of the other rows.
    """

    rows: list[int]
    lengths: list[int]
    batch: int
    pad: int
    ended: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, ids: Tensor, pad: int) -> BatchLayout:
        """Return the layout of a batch of prompts ``(B, L)``."""
        batch, length = ids.shape
        return cls(list(range(batch)), [length] * batch, batch, pad)

    @property
    def width(self) -> int:
        """The length of the longest text, which has no padding before it."""
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
        """Take a round's tokens in: ``counts`` of them per row, which stand in ``extended`` ``(B, W + n + 1)``.

        Returns how the rows move into the next rectangle; None where they stay where they are, and after the last.
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

        ``ids`` ``(B', W)`` are those of the rows that have not ended by themselves.
        """
        going_on = zip(self.rows, ids, self.left_padding, strict=False)
        texts = self.ended | {row: text[padding:] for row, text, padding in going_on}
        texts = [texts[row][: lengths[row]] for row in range(self.batch)]
        return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=self.pad)


class RowAlignedProcessors(LogitsProcessor):
    """Shows every row's own text to processors that look at it.

    Rows whose texts are equally long are processed together. Processors that may tell rows apart by their number see
    the whole batch; the results for rows of another length, which are shown cut or padded, are dropped.

    Parameters
    ----------
    processors
        The user's.
    layout
        Where the texts stand.
    """

    def __init__(self, processors: LogitsProcessorList, layout: BatchLayout) -> None:
        self.processors = processors
        self.layout = layout
        self._alike = process_rows_alike(processors)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.layout.untouched:
            return self.processors(input_ids, scores)
        extras = self.layout.left_padding
        out = torch.empty_like(scores)
        process = self._among_themselves if self._alike else self._in_whole_batch
        for extra in sorted(set(extras)):
            rows = [i for i, other in enumerate(extras) if other == extra]
            out[rows] = process(rows, input_ids, scores, extra)
        return out

    def _among_themselves(self, rows: list[int], ids: Tensor, scores: Tensor, extra: int) -> Tensor:
        return self.processors(ids[rows, extra:], scores[rows])

    def _in_whole_batch(self, rows: list[int], ids: Tensor, scores: Tensor, extra: int) -> Tensor:
        layout, length = self.layout, ids.shape[1] - extra
        texts = ids.new_full((layout.batch, length), layout.pad)
        own = {row: ids[i, start:] for i, (row, start) in enumerate(zip(layout.rows, layout.left_padding, strict=True))}
        for row, text in (own | layout.ended).items():
            texts[row, : len(text)] = text[:length]
        every = scores.new_zeros(layout.batch, scores.shape[-1])
        numbers = [layout.rows[i] for i in rows]
        every[numbers] = scores[rows]
        return self.processors(texts, every)[numbers]


class RowProcessors(LogitsProcessor):
    """Lets processors for a whole batch look at one row alone.

    Parameters
    ----------
    processors
        The user's.
    row, batch
        The row's number, and how many there are.
    """

    def __init__(self, processors: LogitsProcessorList, row: int, batch: int) -> None:
        self.processors = processors
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        every = self.processors(input_ids.expand(self.batch, -1), scores.repeat(self.batch, 1))
        return every[self.row : self.row + 1]


def row_aligned(processors: LogitsProcessorList, layout: BatchLayout) -> LogitsProcessorList:
    """Return processors that see each row's own text; those that do not look at the text stay as they are."""
    if all(type(processor) in PREFIX_FREE_PROCESSORS for processor in processors):
        return processors
    return LogitsProcessorList([RowAlignedProcessors(processors, layout)])


def of_row(processors: LogitsProcessorList, row: int, batch: int) -> LogitsProcessorList:
    """Return processors for one row's text alone; those that may tell rows apart are still shown a whole batch."""
    if process_rows_alike(processors):
        return processors
    return LogitsProcessorList([RowProcessors(processors, row, batch)])
