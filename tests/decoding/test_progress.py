"""Texts end where plain ``generate()`` ends them, whatever a criterion remembers or counts; streamers learn of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria

from hf_lossy_assist import last_stats
from hf_lossy_assist.decoding.progress import TokenStatusStreamer
from tests.encoder_decoders import made
from tests.tiny_models import VOCAB, noisy_copy, prompt, tiny

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
    "counts calls": lambda rows: After(),
    "remembers rows": lambda rows: Remembering(set(range(8, 30)), rows),
    "ends rows apart": lambda rows: Uneven([7, 25, 12][:rows]),
    "after others have ended": lambda rows: Uneven([3, NEW, NEW][:rows]),
}
ENDS = {"with an end of text": {"eos_token_id": [5, 11]}, "without one": {"eos_token_id": None}}


def plain_and_ours(
    target, lossy: dict[str, Any], new: Callable[[int], StoppingCriteria], call: dict[str, Any]
) -> list[tuple[Any, StoppingCriteria]]:
    """Return outputs of the same greedy text, of the target alone and of ours, each with its own criterion."""
    found = []
    rows = len(call["input_ids"])
    for fields in ({}, lossy):
        out = target.generate(
            **call, **fields, max_new_tokens=NEW, do_sample=False, stopping_criteria=[criterion := new(rows)],
            return_dict_in_generate=True,
        )  # fmt: skip
        found.append((out, criterion))
    (plain, _), (ours, _) = found
    assert plain.sequences.tolist() == ours.sequences.tolist()
    return found


def lossless(draft, **more: Any) -> dict[str, Any]:
    return {"assistant_model": draft, "lossy_mode": "lossless", **more}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("rows", [3, 1])
def test_a_criterion_with_a_state_sees_what_it_sees_in_plain_generate(name: str, ends: str, rows: int):
    """Greedily: calls, what they are shown, and texts are those of the target alone."""
    drafting = lossless(DRAFT, num_assistant_tokens=6)
    call = {**inputs(rows), **ENDS[ends], "output_scores": True}
    (alone, plain), (out, ours) = plain_and_ours(TARGET, drafting, CRITERIA[name], call)
    assert len(alone.scores) == len(out.scores)
    stats = out.lossy_stats
    assert stats.accepted > (0 if rows == 1 else 4)
    for row in stats.rows:
        assert len(row.trace) <= out.sequences.shape[1] - 9
        assert sum(row.accepted_histogram) == row.rounds
        assert row.accepted + row.corrected + row.bonus == len(row.trace)
    if isinstance(plain, Uneven):
        assert plain.scores == ours.scores
        assert [x.tolist() for x in plain.shown] == [x.tolist() for x in ours.shown]


@pytest.fixture(scope="module")
def questions(pair) -> dict[str, torch.Tensor]:
    prompts = [example.prompt for example in pair.task.examples("test", 3)]
    return dict(pair.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left"))


def running_ahead(pair, threshold: float) -> dict[str, Any]:
    return {
        "assistant_model": pair.draft, "lossy_mode": "sprinter", "lossy_head": pair.heads["verifier"],
        "lossy_config": {"threshold": threshold},
    }  # fmt: skip


@pytest.mark.parametrize("name", CRITERIA)
def test_the_same_for_a_rule_that_runs_ahead(name: str, pair, questions):
    """With a threshold of 1 nothing is unverified, so that it is lossless; the loop is the same."""
    plain_and_ours(pair.target, running_ahead(pair, 1.0), CRITERIA[name], questions)


def test_unverified_tokens_are_cut_back_too(pair, questions):
    """Tokens that no target has seen end at the same position of every row."""
    out = pair.target.generate(
        **questions, **running_ahead(pair, 0.3), max_new_tokens=NEW, stopping_criteria=[After(20)], do_sample=False,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert out.sequences.shape[1] - questions["input_ids"].shape[1] == 20
    assert [len(row.trace) for row in out.lossy_stats.rows] == [20, 20, 20]
    assert out.lossy_stats.unverified > 10
    for row in out.lossy_stats.rows:
        assert sum(i * n for i, n in enumerate(row.run_histogram)) == row.unverified


@pytest.mark.parametrize("name", CRITERIA)
def test_the_same_where_rows_are_decoded_one_by_one(name: str):
    target = made("t5")
    plain_and_ours(target, lossless(noisy_copy(target, 0.01)), CRITERIA[name], inputs())


class Sure(StoppingCriteria):
    """Ends a row after a token that the target was sure of."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return scores[-1].softmax(-1).amax(-1) > 0.9


def test_a_criterion_sees_the_scores_of_all_rows_that_are_decoded_one_by_one():
    target = made("t5")
    drafting = lossless(noisy_copy(target, 0.01))
    call = {**inputs(), "eos_token_id": [5, 9], "output_scores": True}
    (plain, _), _ = plain_and_ours(target, drafting, lambda rows: Sure(), call)
    texts = plain.sequences.tolist()
    assert len({row.index(0, 1) if 0 in row[1:] else NEW for row in texts}) > 1


def test_rows_that_are_decoded_one_by_one_share_the_time(monkeypatch):
    target, ticks = made("t5"), [0.0]
    drafting = lossless(noisy_copy(target, 0.01), num_assistant_tokens=1)
    monkeypatch.setattr(time, "time", lambda: ticks[0])
    target.register_forward_pre_hook(lambda *_: ticks.__setitem__(0, ticks[0] + 1))
    out = target.generate(
        **inputs(), **drafting, do_sample=False, max_new_tokens=NEW, max_time=8.5, return_dict_in_generate=True,
    )  # fmt: skip
    assert sorted(row.rounds for row in out.lossy_stats.rows) == [3, 3, 4]


class Recorder(TokenStatusStreamer):
    """Has a line for every call."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.fates: list[str] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        assert len(self.fates) <= len(self.tokens)
        assert not self.ended
        self.tokens += value.flatten().tolist()

    def put_statuses(self, fates: Any) -> None:
        self.fates += fates

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize(
    "fields",
    [
        {"lossy_mode": "topk", "lossy_config": {"k": 3}},
        {"lossy_mode": "topk", "lossy_config": {"k": 3, "tree": {"depth": 3, "top_k": 2}}},
        {"lossy_mode": "lossless"},
    ],
    ids=["chain", "tree", "lossless"],
)
def test_fates_are_the_trace(fields: dict):
    target, recorder, ids = tiny(), Recorder(), prompt()
    out = target.generate(
        ids, assistant_model=noisy_copy(target), num_assistant_tokens=4, max_new_tokens=24, do_sample=False,
        streamer=recorder, **fields,
    )  # fmt: skip
    assert recorder.tokens == out[0].tolist()
    assert tuple(recorder.fates) == last_stats(target).trace
    assert len(recorder.fates) == out.shape[1] - ids.shape[1]
    assert recorder.ended == 1
