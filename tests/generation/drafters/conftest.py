"""What is drafted, seen from outside."""

from __future__ import annotations

import pytest
from torch import Tensor

from hf_lossy_assist.drafting.chain import ChainDrafter
from hf_lossy_assist.generation.drafters import lookup_first


@pytest.fixture
def drafts(watch_drafts) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Note every row's text without its padding, what was drafted after it, and the logits of q."""
    seen = []

    def note(draft, drafter, ids, *_):
        for i, padding in enumerate(ids.ne(0).int().argmax(-1).tolist()):  # rows alone don't tell it
            if n := len(draft) if draft.lengths is None else draft.lengths[i]:
                logits = None if draft.logits is None else draft.logits[i, :n]
                seen.append((ids[i, padding:].clone(), draft.tokens[i, :n], logits))

    watch_drafts(ChainDrafter, note)
    return seen


@pytest.fixture
def looks_up(monkeypatch) -> None:
    """Look up in many rounds by the text alone, and leave others to the model."""

    def sometimes(row, count: int, price: float) -> bool:
        text = row.repeats._text
        return row.rounds > 1 and row.repeats.length > 0 and (len(text) + text[-1]) % 3 > 0

    monkeypatch.setattr(lookup_first._Row, "promises_more", sometimes)
    monkeypatch.setattr(lookup_first, "SHORTEST", 1)  # nothing in an untrained model's text repeats for long
