"""Runs the user's logits processors over all positions of a round, and over rows of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..compat import PREFIX_FREE_PROCESSORS, process_rows_alike
from ..core.shapes import Chain, Shape
from ..core.texts import Texts
from .own_states import OwnState


def process(processors: LogitsProcessorList, ids: Tensor, logits: Tensor, shape: Shape | None = None) -> Tensor:
    """Return processed logits; as in plain ``generate()``, processors see the text that ends at each position.

    ``ids`` ``(B, L + n)`` are committed and drafted tokens. ``logits`` ``(B, m, V)`` float32 stand at the first m of
    the n + 1 positions after the committed text, and may be overwritten. ``shape`` says which drafted token follows
    which; None is a single position without a draft.
    """
    if not processors or logits.shape[1] == 0:
        return logits
    if not reads_text(processors):
        batch, positions, vocabulary = logits.shape
        flat = logits.reshape(batch * positions, vocabulary)
        return processors(ids[:, -1:].expand(batch, positions).reshape(-1, 1), flat).view_as(logits)
    if shape is not None:  # a target's round, whose committed text is known
        settle(processors, ids[:, : ids.shape[1] - len(shape)])
    return (Chain(0, ids.device) if shape is None else shape).by_text(processors, ids, logits)


def process_paths(processors: LogitsProcessorList, ids: Tensor, logits: Tensor, shape: Shape) -> Tensor:
    """Return processed logits of K heads ``(B, K, m, V)``, which may be overwritten.

    All else is as for :func:`process`.
    """
    logits = logits.float()
    if not reads_text(processors):
        return process(processors, ids, logits.flatten(1, 2)).view_as(logits)
    return torch.stack([process(processors, ids, path, shape) for path in logits.unbind(1)], dim=1)


def settle(processors: LogitsProcessorList, text: Tensor) -> None:
    """Tell processors that keep copies of themselves that ``text`` ``(B, L)`` is committed."""
    for processor in processors:
        if isinstance(processor, OwnState | RowAlignedProcessors):
            processor.settle(text)


def reads_text(processors: LogitsProcessorList) -> bool:
    """Tell whether a processor may look at the text."""
    return any(type(processor) not in PREFIX_FREE_PROCESSORS for processor in processors)


class RowAlignedProcessors(LogitsProcessor):
    """Shows every row's own text to processors that look at it.

    Rows with texts of one length are processed together. Processors that may tell rows apart by number see the whole
    batch: rows of other lengths are cut or padded for them, and their results dropped. Rows with a processor that may
    keep a state are processed one by one, since states can't be told apart by row.
    """

    def __init__(self, processors: LogitsProcessorList, layout: Texts) -> None:
        self.processors = processors
        self.layout = layout
        self._alike = process_rows_alike(processors)
        self._by_row = {}
        if any(isinstance(processor, OwnState) for processor in processors):
            self._by_row = {row: of_row(processors, row, layout.batch) for row in layout.rows}

    def settle(self, text: Tensor) -> None:
        for i, (row, extra) in enumerate(zip(self.layout.rows, self.layout.left_padding, strict=True)):
            if self._by_row:
                settle(self._by_row[row], text[i : i + 1, extra:])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        extras = self.layout.left_padding
        if self._by_row:
            rows = zip(self.layout.rows, extras, input_ids.split(1), scores.split(1), strict=True)
            return torch.cat([self._by_row[row](ids[:, extra:], own) for row, extra, ids, own in rows])
        if self.layout.untouched:
            return self.processors(input_ids, scores)
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
    """Lets processors of a whole batch process one of its rows."""

    def __init__(self, processors: LogitsProcessorList, row: int, batch: int) -> None:
        self.processors = processors
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        every = self.processors(input_ids.expand(self.batch, -1), scores.repeat(self.batch, 1))
        return every[self.row : self.row + 1]


def row_aligned(processors: LogitsProcessorList, layout: Texts) -> LogitsProcessorList:
    return LogitsProcessorList([RowAlignedProcessors(processors, layout)]) if reads_text(processors) else processors


def of_row(processors: LogitsProcessorList, row: int, batch: int) -> LogitsProcessorList:
    if process_rows_alike(processors):
        return processors
    return LogitsProcessorList([_of_row(processor, row, batch) for processor in processors])


def _of_row(processor: LogitsProcessor, row: int, batch: int) -> LogitsProcessor:
    if isinstance(processor, OwnState):
        return processor.of_row(row, batch)
    alone = LogitsProcessorList([processor])
    return processor if process_rows_alike(alone) else RowProcessors(alone, row, batch)
