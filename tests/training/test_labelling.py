"""Runs: what is mined, recorded, skipped and given up."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections import Counter

import pytest
import torch

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.models.reading import CachedText
from hf_lossy_assist.store.folder import Process
from hf_lossy_assist.training.judge_labels import mismatch_states
from hf_lossy_assist.training.label_folder import load_mined
from tests.forking import ended, fork
from tests.tiny_models import tiny
from tests.training.parts import Checksum, labelling, run, tiny_parts

LABELS = ("index", "target_token", "draft_token", "important", "weight", "right")


def test_everything_is_stored(tmp_path):
    parts = tiny_parts(seed=3)
    notes = run(tmp_path, labelling(parts, 5))
    assert (notes.finished, notes.total, len(notes.results)) == (0, 5, 5)
    mined = load_mined(tmp_path)
    found = {result.prompt.id: result.found for result in parts.searches(2).run(parts.prompts(5))}
    tokens = mined.tokens.with_format("torch")
    assert set(tokens.column_names) == {
        "prompt_id", *LABELS, "target_previous", "target_draft", "draft_previous", "draft_draft",
    }  # fmt: skip
    for prompt in mined.prompts:
        i = prompt["prompt_id"]
        assert prompt["prompt_tokens"] == list(parts.prompts(5)[i].tokens)
        assert prompt["status"] == ("skipped" if found[i].answer is None else "mined")
        assert (prompt["first_response"], prompt["last_response"]) == (list(found[i].first), list(found[i].last))
        assert prompt["answer"] == found[i].answer
        rows = [row for row in tokens if row["prompt_id"] == i]
        labels = [tuple(int(row[name]) for name in LABELS) for row in rows]
        assert labels == [dataclasses.astuple(mismatch) for mismatch in found[i].mismatches]
        assert (prompt["mismatches"], prompt["important"]) == (len(rows), sum(int(row["important"]) for row in rows))
        if rows:
            given = prompt["prompt_tokens"], found[i].last, found[i].mismatches
            states = mismatch_states(parts.target, *given, CachedText())
            for name, values in states.items():
                stored = torch.stack([row[f"target_{name}"] for row in rows])
                torch.testing.assert_close(stored, values, atol=2e-5, rtol=1e-4)
    assert len(mined.tokens) > 3


def test_a_repeated_run_mines_the_rest(tmp_path):
    parts = tiny_parts(seed=3)
    run(tmp_path, labelling(parts, 3))
    before = load_mined(tmp_path).prompts.to_list()
    notes = run(tmp_path, labelling(parts, 6))
    assert (notes.finished, notes.total) == (3, 6)
    assert sorted(outcome.prompt.id for outcome in notes.results) == [3, 4, 5]
    assert load_mined(tmp_path).prompts.to_list()[:3] == before
    assert run(tmp_path, labelling(parts, 6)).results == []


def test_processes_share_the_prompts(tmp_path):
    parts = tiny_parts(seed=3)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    run(alone, labelling(parts, 5))
    for process in range(2):
        notes = run(shared, labelling(parts, 5, process=Process(process, 2)))
        assert sorted(outcome.prompt.id for outcome in notes.results) == list(range(5))[process::2]

    def labels(folder):
        tokens = load_mined(folder).tokens
        return sorted(zip(*(tokens[name][:] for name in ("prompt_id", "index", "important")), strict=True))

    assert labels(shared) == labels(alone)
    # One process alone would find nothing to do.
    assert run(shared, labelling(parts, 5)).results == []


class Moody(Checksum):
    """Raises at some prompts."""

    def __init__(self, moods) -> None:
        super().__init__()
        self.moods = moods

    def answer(self, example, response):
        if self.moods(example):
            raise ZeroDivisionError("no idea")
        return super().answer(example, response)


def test_a_task_that_raises_is_recorded_and_tried_again(tmp_path):
    texts = [example.prompt for example in Checksum().examples("train", 5)]
    parts = tiny_parts(seed=3, task=Moody(lambda example: example.prompt == texts[1]))
    run(tmp_path, labelling(parts, 5))
    statuses = {row["prompt_id"]: (row["status"], row["error"]) for row in load_mined(tmp_path).prompts}
    assert len(statuses) == 5
    assert statuses[1] == ("failed", "ZeroDivisionError: no idea")
    assert [i for i in statuses if statuses[i][0] == "failed"] == [1]

    parts.task.moods = lambda example: False
    notes = run(tmp_path, labelling(parts, 5))
    assert [outcome.prompt.id for outcome in notes.results] == [1]
    assert load_mined(tmp_path).prompts.num_rows == 5


def test_a_task_that_always_raises_stops_the_run(tmp_path):
    parts = tiny_parts(task=Moody(lambda example: True))
    with pytest.raises(LossyValueError, match=r"`task`.*first 10 prompts.*ZeroDivisionError: no idea"):
        run(tmp_path, labelling(parts, 40))
    assert load_mined(tmp_path).prompts.num_rows == 10
    with pytest.raises(LossyValueError, match="`split`"):
        run(tmp_path, labelling(parts, 0))
    # One success is enough to go on.
    first = parts.task.examples("train", 1)[0].prompt
    parts.task.moods = lambda example: example.prompt != first
    notes = run(tmp_path / "more", labelling(parts, 14))
    assert Counter(outcome.status for outcome in notes.results)["failed"] == 13


def test_prompts_that_do_not_fit_are_skipped(tmp_path):
    parts = tiny_parts(seed=3)
    lengths = [len(prompt.tokens) for prompt in parts.prompts(6)]
    limit = sorted(lengths)[2]
    parts.target.config.max_position_embeddings = 24
    run(tmp_path, labelling(parts, 6, max_new_tokens=24 - limit))
    for row in load_mined(tmp_path).prompts:
        too_long = lengths[row["prompt_id"]] > limit
        assert (row["error"] or "").startswith("the prompt has") == too_long
        assert row["status"] == "skipped" or not too_long
    (prompt,), other = parts.prompts(1), labelling(parts, 1, target=tiny(), draft=tiny("gpt2"), max_new_tokens=100)
    fits = [other.refusal(dataclasses.replace(prompt, tokens=(3,) * n)) is None for n in (0, 1, 156, 157)]
    assert fits == [False, True, True, False]


def test_a_killed_process_is_continued(tmp_path):
    """SIGKILL, a hard one: nothing that was finished is lost or mined again."""
    parts = tiny_parts(seed=3)
    victim = fork(run, tmp_path, labelling(parts, 2000))
    for _ in range(1200):
        if len(list(tmp_path.glob("prompts-*.parquet"))) >= 5 or not victim.is_alive():
            break
        time.sleep(0.05)
    victim.kill()
    assert ended(victim) == -signal.SIGKILL
    before = {row["prompt_id"]: row for row in load_mined(tmp_path).prompts}
    assert len(before) >= 5

    count = max(before) + 3
    notes = run(tmp_path, labelling(parts, count))
    after = load_mined(tmp_path)
    assert sorted(outcome.prompt.id for outcome in notes.results) == sorted(set(range(count)) - before.keys())
    assert sorted(after.prompts["prompt_id"]) == list(range(count))
    assert {row["prompt_id"]: row for row in after.prompts if row["prompt_id"] in before} == before
    labels = Counter(after.tokens["prompt_id"])
    assert all(labels[row["prompt_id"]] == row["mismatches"] for row in after.prompts)
