"""Draft lengths by name."""

from __future__ import annotations

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.drafting.draft_length import DraftLength, HeuristicLength, check_num_tokens, draft_length_of


def test_lengths_by_name():
    kinds = [type(draft_length_of(*x)) for x in ((4,), (4, "heuristic"), (4, "constant"))]
    assert kinds == [DraftLength, HeuristicLength, DraftLength]
    for bad in (0, True, 2.5, "car"):
        with pytest.raises(LossyValueError, match="`num_assistant_tokens`"):
            check_num_tokens(bad)


def test_a_schedule_follows_what_is_kept():
    constant, heuristic, sizes = DraftLength(2), HeuristicLength(2), []
    for accepted in (2, 4, 5, 0, 0, 0, 0, 0, 0, 0):
        heuristic.observe(heuristic.size, accepted)
        constant.observe(2, accepted)
        sizes.append(heuristic.size)
    assert sizes == [4, 6, 5, 4, 3, 2, 1, 1, 1, 1]
    assert constant.size == 2
