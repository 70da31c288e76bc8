"""What is drafted, seen from outside."""

from __future__ import annotations

import pytest
from torch import Tensor

from hf_lossy_assist.drafting.chain import ChainDrafter


@pytest.fixture
def drafts(monkeypatch) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Note every row's text without its padding, what was drafted after it, and the logits of q."""
    seen, propose = [], ChainDrafter.propose

    def noted(self, ids, layout, remaining):
        draft = propose(self, ids, layout, remaining)
        for i, padding in enumerate(ids.ne(0).int().argmax(-1).tolist()):  # rows alone don't tell it
            if n := len(draft) if draft.lengths is None else draft.lengths[i]:
                logits = None if draft.logits is None else draft.logits[i, :n]
                seen.append((ids[i, padding:].clone(), draft.tokens[i, :n], logits))
        return draft

    monkeypatch.setattr(ChainDrafter, "propose", noted)
    return seen
