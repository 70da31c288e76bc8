"""Runs the user's logits processors over all positions of a round, and over rows of different lengths."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..compat.processors import PREFIX_FREE_PROCESSORS, of_rows, process_row, process_rows_alike, process_rows_apart
from ..core.shapes import Chain, Shape
from ..core.texts import Texts
from ..core.transfers import to_device
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
    return (Chain(0, ids.device) if shape is None else shape).by_text(processors, ids, logits, alike(processors))


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


def settings_of(processors: LogitsProcessorList) -> Hashable | None:
    """Return what tells processors from others; None where they look at the text, or hold more than plain values."""
    found = tuple((type(processor), *sorted(vars(processor).items())) for processor in processors)
    plain = all(isinstance(value, int | float | str | None) for _, *values in found for _, value in values)
    return found if plain and not reads_text(processors) else None


def alike(processors: LogitsProcessorList) -> bool:
    """Tell whether several texts of each row may be shown at once, those of one row after another."""
    return all(x.alike if isinstance(x, RowAlignedProcessors) else process_rows_alike([x]) for x in processors)


class RowAlignedProcessors(LogitsProcessor):
    """Shows every row's own text to processors that look at it.

    Rows with texts of one length are processed together. Processors that may tell rows apart by number see the whole
    batch: rows of other lengths are cut or padded for them, and their results dropped. Rows with a processor that may
    keep a state are processed one by one, since states can't be told apart by row. Where ``alike``, a call may show
    equally many texts of each row, those of one row after another.
    """

    def __init__(self, processors: LogitsProcessorList, layout: Texts) -> None:
        self.processors = processors
        self.layout = layout
        self.alike = process_rows_apart(processors)
        self._by_row = {}
        self._known: tuple[Any, dict[int, tuple[list[_Group], Tensor]]] | None = None
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
        if self.layout.untouched and len(scores) == len(extras):
            return self.processors(input_ids, scores)
        groups, back = self._groups(len(scores) // len(extras), scores.device)
        process = self._among_themselves if self.alike else self._in_whole_batch
        return torch.cat([process(group, input_ids, scores) for group in groups]).index_select(0, back)

    def _groups(self, times: int, device: torch.device) -> tuple[list[_Group], Tensor]:
        """Return the rows, each ``times``, by the lengths of their texts, and where each then is: once per round."""
        layout = self.layout
        extras, rows = layout.left_padding, list(layout.rows)
        if self._known is None or self._known[0] != (extras, rows):
            self._known = (extras, rows), {}
        if times not in self._known[1]:
            every = [i * times + j for i in sorted(range(len(rows)), key=extras.__getitem__) for j in range(times)]
            back = sorted(range(len(every)), key=every.__getitem__)
            at, numbers, back = to_device([every, [rows[i // times] for i in every], back], device).unbind()
            lengths = sorted(set(extras))
            sizes = [times * extras.count(extra) for extra in lengths]
            groups = zip(lengths, at.split(sizes), numbers.split(sizes), strict=True)
            if self.alike:
                groups = [_Group(*group, of_rows(self.processors, group[2])) for group in groups]
            else:
                groups = [_Group(*group, self.processors) for group in groups]
            self._known[1][times] = groups, back
        return self._known[1][times]

    def _among_themselves(self, group: _Group, ids: Tensor, scores: Tensor) -> Tensor:
        shown = ids[:, group.extra :].index_select(0, group.at)
        return group.processors(shown, scores.index_select(0, group.at))

    def _in_whole_batch(self, group: _Group, ids: Tensor, scores: Tensor) -> Tensor:
        layout, length, numbers = self.layout, ids.shape[1] - group.extra, group.numbers
        texts = ids.new_full((layout.batch, length), layout.filler)
        own = {row: ids[i, start:] for i, (row, start) in enumerate(zip(layout.rows, layout.left_padding, strict=True))}
        for row, text in (own | layout.ended).items():
            texts[row, : len(text)] = text[:length]
        every = scores.new_zeros(layout.batch, scores.shape[-1])
        every.index_copy_(0, numbers, scores.index_select(0, group.at))
        return group.processors(texts, every).index_select(0, numbers)


@dataclass(frozen=True, eq=False)
class _Group:
    """Rows whose texts have one length."""

    extra: int  # what stands before them
    at: Tensor  # where the rows are
    numbers: Tensor  # and their numbers in the batch
    processors: LogitsProcessorList


class RowProcessor(LogitsProcessor):
    """Lets a processor of a whole batch process one of its rows."""

    def __init__(self, processor: LogitsProcessor, row: int, batch: int) -> None:
        self.processor = processor
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return process_row(self.processor, self.row, self.batch, input_ids, scores)


def row_aligned(processors: LogitsProcessorList, layout: Texts) -> LogitsProcessorList:
    return LogitsProcessorList([RowAlignedProcessors(processors, layout)]) if reads_text(processors) else processors


def of_row(processors: LogitsProcessorList, row: int, batch: int) -> LogitsProcessorList:
    if process_rows_alike(processors):
        return processors
    return LogitsProcessorList([_of_row(processor, row, batch) for processor in processors])


def _of_row(processor: LogitsProcessor, row: int, batch: int) -> LogitsProcessor:
    if isinstance(processor, OwnState):
        return processor.of_row(row, batch)
    return processor if process_rows_alike([processor]) else RowProcessor(processor, row, batch)
