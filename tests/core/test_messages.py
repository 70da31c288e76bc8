"""Messages say on the host what tensors hold, row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from hf_lossy_assist.core.messages import Commit, Decision, Draft, RowDecision, Verification
from tests.decoding.fixtures import between, random_tokens

RULES = ("a", "b")
SEEDS = pytest.mark.parametrize("seed", range(20))


@dataclass
class Row:
    """One row of a round, as lists."""

    drafted: int
    tokens: list[int]
    n_accepted: int
    next_token: int
    lossless: list[bool]
    credited: list[str | None]

    @property
    def decided(self) -> RowDecision:
        kept_by = {rule: [name == rule for name in self.credited] for rule in RULES}
        tokens = [*self.tokens[: self.n_accepted], self.next_token]
        complete = self.n_accepted == self.drafted
        return RowDecision(self.drafted, self.n_accepted, tokens, complete, self.lossless, kept_by)


@SEEDS
def test_a_decision_arrives_on_the_host(seed: int):
    n = 5
    generator, rows = torch.Generator().manual_seed(seed), []
    for _ in range(4):
        drafted = between(0, n, generator)
        rows.append(
            Row(
                drafted,
                random_tokens(n, generator),
                between(0, drafted, generator),
                *random_tokens(1, generator),
                [bool(between(0, 1, generator)) for _ in range(n)],
                [(*RULES, None)[between(0, 2, generator)] for _ in range(n)],
            )
        )
    draft = Draft(torch.tensor([row.tokens for row in rows]), lengths=tuple(row.drafted for row in rows))
    lossless = torch.tensor([row.lossless for row in rows])
    masks = {rule: torch.tensor([[name == rule for name in row.credited] for row in rows]) for rule in RULES}
    n_accepted, next_token = (torch.tensor([getattr(row, x) for row in rows]) for x in ("n_accepted", "next_token"))
    complete = torch.tensor([row.n_accepted == row.drafted for row in rows])
    decision = Decision(lossless, n_accepted, next_token, complete, lossless, masks)
    assert decision.to_host(draft) == [row.decided for row in rows]


def test_masks_that_are_one_tensor_arrive_under_each_of_their_names():
    lossless = torch.tensor([[True, False]])
    draft = Draft(torch.tensor([[5, 6]]))
    ends = torch.tensor([1]), torch.tensor([9]), torch.tensor([False])
    decision = Decision(lossless, *ends, lossless, {"a": lossless, "b": ~lossless})
    (row,) = decision.to_host(draft)
    assert row == RowDecision(2, 1, [5, 9], False, [True, False], {"a": [True, False], "b": [False, True]})


def test_an_empty_draft_and_the_width_after_a_commit():
    ids = torch.tensor([[0, 3, 4], [5, 6, 7]])
    draft = Draft.empty(ids)
    assert draft.tokens.shape == (2, 0)
    extended = torch.cat([ids, torch.tensor([[8, 9], [10, 11]])], dim=1)
    commit = Commit(extended, 3, 1, (1, 0), (2, 1), (0, 1), (1, 0), None)
    assert commit.width == 5


def test_replaced_logits_count_after_every_token_of_a_chain():
    asked = Verification(tokens=torch.zeros(1, 1, dtype=torch.long), logits=torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    other = replace(asked, logits=-asked.logits)
    assert other.best.tolist() == [[0, 1]]
    assert other.after(torch.tensor([1])).argmax(-1).tolist() == [1]
