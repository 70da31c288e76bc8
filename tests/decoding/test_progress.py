"""Texts end where plain ``generate()`` ends them, whatever a criterion remembers or counts."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from transformers import (
    StoppingCriteria,
)

from tests.encoder_decoders import made
from tests.tiny_models import VOCAB, noisy_copy, tiny

TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.01)
NEW = 24


class After(StoppingCriteria):
    """Holds for all rows from its n-th call on."""

    def __init__(self, calls: int = 20) -> None:
        self.calls = calls

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.calls -= 1
        return torch.full((len(input_ids),), self.calls <= 0)


class Remembering(StoppingCriteria):
    """Remembers the rows in which it has held; a bool for the whole batch, as in evaluation harnesses."""

    def __init__(self, tokens: set[int], batch: int) -> None:
        self.tokens = tokens
        self.done = [False] * batch

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> bool:
        for i in range(len(self.done)):
            self.done[i] = self.done[i] or int(input_ids[i, -1]) in self.tokens
        return False not in self.done


class Uneven(StoppingCriteria):
    """Ends each row after a number of its calls, and keeps what it was shown."""

    def __init__(self, calls: list[int]) -> None:
        self.calls = calls
        self.shown: list[torch.Tensor] = []
        self.scores: list[int | None] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.shown.append(input_ids.clone())
        self.scores.append(None if scores is None else len(scores))
        return torch.tensor([len(self.shown) >= n for n in self.calls])


def inputs(rows: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    mask = torch.ones(rows, 9, dtype=torch.long)
    for i in range(rows):
        mask[i, : 2 * i] = 0
    ids = torch.randint(3, VOCAB, (rows, 9), generator=generator).masked_fill(mask == 0, 0)
    return {"input_ids": ids, "attention_mask": mask}


CRITERIA = {
    "counts calls": lambda: After(),
    "remembers rows": lambda: Remembering(set(range(8, 30)), 3),
    "ends rows apart": lambda: Uneven([7, 25, 12]),
    "after others have ended": lambda: Uneven([3, NEW, NEW]),
}
ENDS = {"with an end of text": {"eos_token_id": [5, 11]}, "without one": {"eos_token_id": None}}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("rows", [3, 1])
def test_a_criterion_with_a_state_sees_what_it_sees_in_plain_generate(name: str, ends: str, rows: int):
    """Greedily: calls, what they are shown, and texts are those of the target alone."""
    if rows == 1 and name == "remembers rows":
        pytest.skip("remembers three rows")
    texts, criteria = [], []
    for speculative in ({}, {"assistant_model": DRAFT, "lossy_mode": "lossless", "num_assistant_tokens": 6}):
        criterion = CRITERIA[name]()
        if isinstance(criterion, Uneven):
            criterion.calls = criterion.calls[:rows]
        texts.append(
            TARGET.generate(
                **inputs(rows), **ENDS[ends], **speculative, max_new_tokens=NEW, do_sample=False,
                stopping_criteria=[criterion], output_scores=True, return_dict_in_generate=True,
            )
        )  # fmt: skip
        criteria.append(criterion)
    assert texts[0].sequences.tolist() == texts[1].sequences.tolist()
    assert len(texts[1].scores) == len(texts[0].scores)
    stats = texts[1].lossy_stats
    assert stats.accepted > (0 if rows == 1 else 4)
    for row in stats.rows:
        assert len(row.trace) <= texts[1].sequences.shape[1] - 9
        assert sum(row.accepted_histogram) == row.rounds
        assert row.accepted + row.corrected + row.bonus == len(row.trace)
    if isinstance(criteria[0], Uneven):
        assert criteria[0].scores == criteria[1].scores
        assert [x.tolist() for x in criteria[0].shown] == [x.tolist() for x in criteria[1].shown]


@pytest.mark.parametrize("name", CRITERIA)
def test_the_same_for_a_rule_that_runs_ahead(name: str, pair):
    """With a threshold of 1 nothing is unverified, so that it is lossless; the loop is the same."""
    texts = []
    prompts = [example.prompt for example in pair.task.examples("test", 3)]
    batch = pair.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    for threshold in (None, 1.0):
        mode = {} if threshold is None else {
            "assistant_model": pair.draft, "lossy_mode": "sprinter", "lossy_head": pair.heads["verifier"],
            "lossy_config": {"threshold": threshold},
        }  # fmt: skip
        texts.append(
            pair.target.generate(
                **batch, **mode, max_new_tokens=NEW, do_sample=False, stopping_criteria=[CRITERIA[name]()]
            )
        )
    assert texts[0].tolist() == texts[1].tolist()


def test_unverified_tokens_are_cut_back_too(pair):
    """Tokens that no target has seen end at the same position of every row."""
    prompts = [example.prompt for example in pair.task.examples("test", 3)]
    batch = pair.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    out = pair.target.generate(
        **batch, assistant_model=pair.draft, lossy_mode="sprinter", lossy_head=pair.heads["verifier"],
        lossy_config={"threshold": 0.3}, max_new_tokens=NEW, stopping_criteria=[After(20)], do_sample=False,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert out.sequences.shape[1] - batch["input_ids"].shape[1] == 20
    assert [len(row.trace) for row in out.lossy_stats.rows] == [20, 20, 20]
    assert out.lossy_stats.unverified > 10
    for row in out.lossy_stats.rows:
        assert sum(i * n for i, n in enumerate(row.run_histogram)) == row.unverified


@pytest.mark.parametrize("name", CRITERIA)
def test_the_same_where_rows_are_decoded_one_by_one(name: str):
    target = made("t5")
    texts = []
    for speculative in ({}, {"assistant_model": noisy_copy(target, 0.01), "lossy_mode": "lossless"}):
        texts.append(
            target.generate(
                **inputs(), **speculative, max_new_tokens=NEW, do_sample=False, stopping_criteria=[CRITERIA[name]()]
            )
        )
    assert texts[0].tolist() == texts[1].tolist()


class Sure(StoppingCriteria):
    """Ends a row after a token that the target was sure of."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return scores[-1].softmax(-1).amax(-1) > 0.9


def test_a_criterion_sees_the_scores_of_all_rows_that_are_decoded_one_by_one():
    target = made("t5")
    texts = [
        target.generate(
            **inputs(), **speculative, max_new_tokens=NEW, do_sample=False, stopping_criteria=[Sure()],
            output_scores=True, return_dict_in_generate=True, eos_token_id=[5, 9],
        ).sequences.tolist()
        for speculative in ({}, {"assistant_model": noisy_copy(target, 0.01), "lossy_mode": "lossless"})
    ]  # fmt: skip
    assert texts[0] == texts[1]
    assert len({row.index(0, 1) if 0 in row[1:] else NEW for row in texts[0]}) > 1


def test_rows_that_are_decoded_one_by_one_share_the_time(monkeypatch):
    target, ticks = made("t5"), [0.0]
    draft = noisy_copy(target, 0.01)
    monkeypatch.setattr(time, "time", lambda: ticks[0])
    target.register_forward_pre_hook(lambda *_: ticks.__setitem__(0, ticks[0] + 1))
    out = target.generate(
        **inputs(), assistant_model=draft, lossy_mode="lossless", num_assistant_tokens=1,
        do_sample=False, max_new_tokens=NEW, max_time=8.5, return_dict_in_generate=True,
    )  # fmt: skip
    assert sorted(row.rounds for row in out.lossy_stats.rows) == [3, 3, 4]
