"""Laws that are none keep nothing and break nothing; random ones are a part of the trial."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hf_lossy_assist.acceptors import decide
from hf_lossy_assist.core.messages import Verification
from tests.trial.laws import WIDTH, usual_rules

RULES = usual_rules()


@pytest.mark.parametrize("name", RULES)
def test_logits_that_are_no_numbers(name: str):
    """Greedily NaN is the largest number, as for torch and so for plain generation."""
    nan = torch.full((1, 4, 5), torch.nan)
    v = Verification(
        tokens=torch.tensor([[1, 2, 3]]),
        logits=nan,
        draft_logits=nan[:, 1:],
        hidden=torch.full((1, 4, WIDTH), torch.nan),
        dropped_logits=nan[:, None, 1:].expand(-1, 3, -1, -1),
        centroid_logits=nan[:, 1:],
        draft_hidden=torch.full((1, 3, WIDTH), torch.nan),
    )
    for logits in (nan, torch.full_like(nan, -torch.inf)):
        decision = decide(RULES[name], dataclasses.replace(v, logits=logits))
        assert decision.n_accepted.tolist() == [0]
        assert decision.next_token.tolist() == [0]
