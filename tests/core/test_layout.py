"""The rectangle of a batch holds the texts that lists of tokens would hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
)

from hf_lossy_assist.core.texts import RowShift, Texts
from hf_lossy_assist.models.processing import RowAlignedProcessors, RowProcessor
from tests.decoding.fixtures import PAD, Round, between, longer, random_round, random_tokens, rectangle
from tests.tiny_models import VOCAB


class Expected:
    """A batch as lists of tokens: the rows that go on, and those that have ended."""

    def __init__(self, rows: int, length: int, generator: torch.Generator) -> None:
        self.going_on = {row: random_tokens(length, generator) for row in range(rows)}
        self.ended: dict[int, list[int]] = {}

    @property
    def rectangle(self) -> torch.Tensor:
        return rectangle(list(self.going_on.values()))

    def grow(self, new: Round) -> None:
        after = dict(zip(self.going_on, new.after(list(self.going_on.values())), strict=True))
        gone = [row for row, ended in zip(self.going_on, new.ended, strict=True) if ended]
        self.ended |= {row: after.pop(row) for row in gone}
        self.going_on = after


def grown(seed: int, rows: int = 5, rounds: int = 8) -> Iterator[tuple[Texts, Expected, torch.Tensor]]:
    """Yield layout, texts and rectangle after each of several rounds that leave rows; rows may be cut back."""
    generator = torch.Generator().manual_seed(seed)
    texts = Expected(rows, 6, generator)
    layout, ids = Texts(texts.rectangle, PAD), texts.rectangle
    for _ in range(rounds):
        yield layout, texts, ids
        # Up to 12 tokens more than the slowest, and up to two fewer than before.
        new = random_round(len(texts.going_on), between(0, 12, generator), generator, least=-2)
        extended = layout.with_draft(torch.tensor(new.tokens))
        shift = layout.grow(extended, longer(layout, new.counts), new.ended)
        before = texts.rectangle.shape[1]
        texts.grow(new)
        if not texts.going_on:
            assert shift is None
            return
        ids = extended[:, : before + new.counts[0]] if shift is None else shift.moved(extended, PAD)
    yield layout, texts, ids


@pytest.mark.parametrize("seed", range(20))
def test_rectangles_hold_the_texts(seed: int):
    for layout, texts, ids in grown(seed):
        assert ids.tolist() == texts.rectangle.tolist()
        assert layout.rows == list(texts.going_on)
        assert layout.lengths == [len(text) for text in texts.going_on.values()]
        assert layout.width == ids.shape[1]
        own = [row[padding:] for row, padding in zip(ids.tolist(), layout.left_padding, strict=True)]
        assert own == list(texts.going_on.values())
        assert {row: text.tolist() for row, text in layout.ended.items()} == texts.ended
        assert layout.untouched == (not texts.ended and len(set(layout.lengths)) == 1)


@pytest.mark.parametrize("seed", range(10))
def test_all_texts_cut_to_lengths(seed: int):
    """Rows that have ended may be cut back later, so what is asked for counts."""
    generator = torch.Generator().manual_seed(seed)
    for layout, texts, _ in grown(seed):
        every = texts.going_on | texts.ended
        lengths = [between(1, len(every[row]), generator) for row in range(5)]
        wanted = [every[row][:length] for row, length in enumerate(lengths)]
        padded = [text + [PAD] * (max(lengths) - len(text)) for text in wanted]
        assert layout.finish(lengths).tolist() == padded


def test_all_texts_after_the_last_has_ended():
    ids = torch.tensor([[5, 6], [7, 8]])
    layout = Texts(ids, PAD)
    extended = layout.with_draft(torch.tensor([[9, 10, 11], [12, 13, 14]]))
    assert layout.grow(extended, longer(layout, [3, 1]), [True, True]) is None
    assert layout.finish([5, 3]).tolist() == [[5, 6, 9, 10, 11], [7, 8, 12, PAD, PAD]]


def test_rows_that_agree_stay_where_they_are():
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    layout = Texts(ids, PAD)
    assert layout.grow(layout.with_draft(ids), longer(layout, [2, 2]), [False, False]) is None
    assert layout.grow(layout.with_draft(ids), longer(layout, [1, 3]), [False, False]) is not None
    assert layout.left_padding == [2, 0]
    assert layout.grow(layout.with_draft(ids), longer(layout, [1, 1]), [False, False]) is None
    assert layout.left_padding == [2, 0]


SHIFTS = [
    RowShift((0, 1, 2), (7, 9, 8), 9, torch.device("cpu")),
    RowShift((1, 3), (6, 4), 6, torch.device("cpu")),  # rows leave, and the rectangle becomes narrower
    RowShift((0, 2), (12, 3), 5, torch.device("cpu")),  # the longest one was cut back
]


@pytest.mark.parametrize("shift", SHIFTS, ids=["all stay", "some leave", "narrower"])
def test_slots_come_from_where_they_were(shift: RowShift):
    for slots in range(1, shift.width + 1):
        wanted = [[slot - (shift.width - end) for slot in range(slots)] for end in shift.ends]
        assert shift.sources(slots).tolist() == wanted


@pytest.mark.parametrize("shift", SHIFTS[:2], ids=["all stay", "some leave"])
def test_known_slots_are_known_in_every_row(shift: RowShift):
    """Padding is known, and what was known before the newest token; that itself is in no cache."""
    for before in range(1, 12):

        def is_known(slot: int, before: int = before) -> bool:
            old = [(slot - (shift.width - end), end) for end in shift.ends]
            return all(source < min(before, end - 1) for source, end in old)

        wanted = next(slot for slot in range(20) if not is_known(slot))
        assert shift.known(before) == wanted


@pytest.mark.parametrize("shift", SHIFTS[:2], ids=["all stay", "some leave"])
def test_values_of_any_kind_move(shift: RowShift):
    values = torch.arange(3 * 4 * 10).view(3, 4, 10)
    moved = shift.moved(values, -1)
    assert moved.shape == (3, len(shift.rows), shift.width)
    for kind in range(3):
        for i, (row, end) in enumerate(zip(shift.rows, shift.ends, strict=True)):
            new = shift.width - end
            assert moved[kind, i].tolist() == [-1] * new + values[kind, row, :end].tolist()
    shared = torch.arange(10)[None]  # the same for all rows
    assert shift.moved(shared, -1).tolist() == shift.moved(shared.expand(4, -1), -1).tolist()


class ByNumber(LogitsProcessor):
    """Looks at the row's number, the whole text and its length."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.stack([alone(row, text, scores[row]) for row, text in enumerate(input_ids)])


def alone(row: int, text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    forbidden = torch.arange(VOCAB) % 5 == (int(text.sum()) + 3 * len(text) + row) % 5
    return scores.masked_fill(forbidden, -torch.inf)


@pytest.mark.parametrize("seed", range(8))
def test_processors_that_know_a_row_s_number_see_its_text(seed: int):
    for layout, texts, ids in grown(seed):
        scores = torch.randn(len(ids), VOCAB, generator=torch.Generator().manual_seed(seed))
        found = RowAlignedProcessors(LogitsProcessorList([ByNumber()]), layout)(ids, scores.clone())
        for i, (row, text) in enumerate(texts.going_on.items()):
            assert found[i].equal(alone(row, torch.tensor(text), scores[i]))


def test_one_row_of_a_batch_keeps_its_number():
    text, scores = torch.tensor([[5, 6, 7]]), torch.randn(1, VOCAB)
    for row in range(4):
        found = RowProcessor(ByNumber(), row, 4)(text, scores.clone())
        assert found.equal(alone(row, text[0], scores[0])[None])
