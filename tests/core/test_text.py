"""Buffers hold what concatenation would give, and what they hand out as committed does not change."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist.core.texts import ROOM, GrowingTensor, Texts, counting, ones


@pytest.mark.parametrize("rows", [1, 3])
def test_rounds_of_a_text_are_what_concatenation_gives(rows):
    """Over several reallocations, with every share of a proposal kept."""
    generator = torch.Generator().manual_seed(rows)
    expected = torch.randint(99, (rows, 5), generator=generator)
    text, seen = Texts(expected), []
    for n in range(60):
        proposal = torch.randint(99, (rows, n), generator=generator)
        assert torch.equal(text.with_draft(proposal), torch.cat([expected, proposal], dim=1))
        kept = n * 7 % (n + 1)
        token = torch.randint(99, (rows,), generator=generator)
        expected = torch.cat([expected, proposal[:, :kept], token[:, None]], dim=1)
        whole = text.with_next(n, [kept] * rows, token)
        assert whole.shape == (rows, text.width + n + 1)
        assert torch.equal(whole[:, : text.width + kept + 1], expected)
        assert text.grow(whole, [text.width + kept + 1] * rows, [False] * rows) is None
        seen.append((text.ids, expected))
    assert expected.shape[1] > 5 + ROOM
    assert all(torch.equal(*pair) for pair in seen)


def test_a_buffer_is_no_part_of_what_it_was_made_of():
    ids = torch.tensor([[1, 2]])
    text = Texts(ids)
    text.grow(text.with_draft(torch.tensor([[3]])), [3], [False])
    assert text.ids.tolist() == [[1, 2, 3]]
    ids.fill_(9)
    assert text.ids.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("values", "go_on", "expected"),
    [
        (torch.tensor([[0, 1, 1], [1, 1, 1]]), ones, [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
        (torch.tensor([[0, 0, 1], [0, 1, 2]]), counting, [[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        (torch.tensor([[[0, 1]], [[4, 6]]]), counting, [[[0, 1, 2, 3, 4]], [[4, 6, 7, 8, 9]]]),
    ],
)
def test_what_goes_on(values, go_on, expected):
    line = GrowingTensor(values, go_on)
    for length in (values.shape[-1], 5, 5 * ROOM, 5):
        out = line.between(0, length)
        assert out.shape == (*values.shape[:-1], length)
        assert torch.equal(out[..., :5], torch.tensor(expected)[..., :length])
        assert torch.equal(line.between(1, length), out[..., 1:])


def test_ids_of_any_integer_type_become_the_usual_one():
    text = Texts(torch.tensor([[1, 2]], dtype=torch.int32))
    assert text.with_draft(torch.tensor([[3]])).dtype == text.ids.dtype == torch.int64


def test_the_next_token_stands_where_each_row_has_kept_to():
    text = Texts(torch.tensor([[1], [2], [3]]))
    text.with_draft(torch.tensor([[4, 5], [4, 5], [4, 5]]))
    whole = text.with_next(2, [0, 2, 1], torch.tensor([9, 9, 9]))
    assert whole[0, :2].tolist() == [1, 9]
    assert whole[1].tolist() == [2, 4, 5, 9]
    assert whole[2, :3].tolist() == [3, 4, 9]
