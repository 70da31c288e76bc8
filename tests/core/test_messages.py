"""Messages say on the host what tensors hold, row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from hf_lossy_assist.core.messages import Commit, Decision, Draft, RowDecision
from hf_lossy_assist.core.verification import Verification
from tests.decoding.fixtures import between, random_tokens

RULES = ("a", "b")
SEEDS = pytest.mark.parametrize("seed", range(20))


@dataclass
class Row:
    """One row of a round, as lists."""

    unverified: int
    undecided: int
    tokens: list[int]
    n_accepted: int
    next_token: int
    lossless: list[bool]
    credited: list[str | None]

    def decided(self, bonus: bool) -> RowDecision:
        if self.unverified and not self.undecided:
            return RowDecision(self.unverified, 0, self.tokens[: self.unverified])
        complete = self.n_accepted == self.undecided
        of_target = [self.next_token] if bonus or not complete else []
        kept_by = {rule: [name == rule for name in self.credited] for rule in RULES}
        tokens = self.tokens[: self.unverified + self.n_accepted] + of_target
        return RowDecision(self.unverified, self.n_accepted, tokens, complete, self.lossless, kept_by)


def round_of(seed: int, ahead: bool, n: int = 5, rows: int = 4) -> tuple[list[Row], Draft, Decision]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(rows):
        unverified = between(0, n - 1, generator) if ahead else 0
        undecided = between(0 if unverified else 1, 1, generator) if ahead else between(0, n, generator)
        columns = 1 if ahead else n
        made.append(
            Row(
                unverified,
                undecided,
                random_tokens(n, generator),
                between(0, undecided, generator),
                *random_tokens(1, generator),
                [bool(between(0, 1, generator)) for _ in range(columns)],
                [(*RULES, None)[between(0, 2, generator)] for _ in range(columns)],
            )
        )
    draft = Draft(
        torch.tensor([row.tokens for row in made]),
        lengths=tuple(row.unverified + row.undecided for row in made),
        unverified=tuple(row.unverified for row in made) if ahead else None,
        bonus=not ahead,
    )
    lossless = torch.tensor([row.lossless for row in made])
    masks = {rule: torch.tensor([[name == rule for name in row.credited] for row in made]) for rule in RULES}
    n_accepted, next_token = (torch.tensor([getattr(row, x) for row in made]) for x in ("n_accepted", "next_token"))
    complete = torch.tensor([row.n_accepted == row.undecided for row in made])
    return made, draft, Decision(lossless, n_accepted, next_token, complete, lossless, masks)


@pytest.mark.parametrize("ahead", [False, True])
@SEEDS
def test_a_decision_arrives_on_the_host(seed: int, ahead: bool):
    rows, draft, decision = round_of(seed, ahead)
    assert decision.to_host(draft) == [row.decided(draft.bonus) for row in rows]


def test_masks_that_are_one_tensor_arrive_under_each_of_their_names():
    lossless = torch.tensor([[True, False]])
    draft = Draft(torch.tensor([[5, 6]]))
    ends = torch.tensor([1]), torch.tensor([9]), torch.tensor([False])
    decision = Decision(lossless, *ends, lossless, {"a": lossless, "b": ~lossless})
    (row,) = decision.to_host(draft)
    assert row == RowDecision(0, 1, [5, 9], False, [True, False], {"a": [True, False], "b": [False, True]})


@SEEDS
def test_what_rows_were_given_and_what_is_undecided(seed: int):
    rows, draft, _ = round_of(seed, ahead=True)
    for i, row in enumerate(rows):
        assert draft.unverified_in(i) == row.unverified
        assert draft.undecided_in(i) == row.undecided
        if row.undecided:
            assert draft.first_undecided[i] == row.unverified
    assert draft.undecided_rows == tuple(i for i, row in enumerate(rows) if row.undecided)


@SEEDS
def test_columns_before_any_undecided_token_go(seed: int):
    rows, draft, _ = round_of(seed, ahead=True, rows=8)
    start = min(row.unverified for row in rows if row.undecided)
    judged = draft.without_unverified()
    assert judged.tokens.tolist() == [row.tokens[start:] for row in rows]
    for i in draft.undecided_rows:
        assert judged.tokens[i, judged.first_undecided[i]] == rows[i].tokens[rows[i].unverified]


def test_rows_that_have_ended_in_unverified_tokens():
    draft = Draft(torch.tensor([[5, 6, 7], [8, 9, 10]]), lengths=(3, 1), unverified=(3, 1), bonus=False)
    assert draft.undecided_rows == ()


def test_an_empty_draft_and_texts_after_a_commit():
    ids = torch.tensor([[0, 3, 4], [5, 6, 7]])
    draft = Draft.empty(ids)
    assert (len(draft), draft.undecided_in(1), draft.undecided_rows) == (0, 0, (0, 1))
    extended = torch.cat([ids, torch.tensor([[8, 9], [10, 11]])], dim=1)
    commit = Commit(extended, 3, 1, (1, 0), (2, 1), (0, 1), (1, 0), None)
    assert commit.width == 5
    assert [commit.text(i).tolist() for i in range(2)] == [[[3, 4, 8, 9]], [[5, 6, 7, 10]]]


def test_replaced_logits_count_after_every_token_of_a_chain():
    asked = Verification(tokens=torch.zeros(1, 1, dtype=torch.long), logits=torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    other = replace(asked, logits=-asked.logits)
    assert other.best.tolist() == [[0, 1]]
    assert other.after(torch.tensor([1])).argmax(-1).tolist() == [1]
