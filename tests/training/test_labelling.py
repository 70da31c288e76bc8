"""Runs: what is mined, recorded, skipped and given up; what their plans note, and what may change in a folder."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.models.reading import CachedText
from hf_lossy_assist.store.folder import Process, claimed
from hf_lossy_assist.tasks.api_model import ApiModel
from hf_lossy_assist.training.judge_labels import JudgeLabels, mismatch_states
from hf_lossy_assist.training.labelling import LabelFolder, Labelling, load_mined
from hf_lossy_assist.training.ratio_labels import RatioLabels
from tests.forking import elsewhere
from tests.small_pair import changed
from tests.tiny_models import noisy_copy, tiny
from tests.training.parts import Checksum, Parts, labelling, run, tiny_parts

LABELS = ("index", "target_token", "draft_token", "important", "weight")


def test_everything_is_stored(tmp_path):
    parts = tiny_parts(seed=3)
    assert run(tmp_path, labelling(parts, 5)) == [0, 1, 2, 3, 4]
    mined = load_mined(tmp_path)
    found = {result.prompt.id: result.found for result in parts.searches(2).run(parts.prompts(5))}
    assert set(mined.tokens) == {"prompt_id", *LABELS, "target_previous", "target_draft"}
    for row in mined.prompts:
        i, own = row.id, mined.tokens["prompt_id"] == row.id
        assert row.prompt_tokens == parts.prompts(5)[i].tokens
        assert row.status == ("skipped" if found[i].answer is None else "mined")
        if found[i].answer is None:
            assert not own.any()
            continue
        assert (row.columns["first_response"], row.columns["last_response"]) == ([*found[i].first], [*found[i].last])
        assert row.columns["answer"] == found[i].answer
        labels = [*zip(*(mined.tokens[name][own].tolist() for name in LABELS), strict=True)]
        assert labels == [dataclasses.astuple(mismatch) for mismatch in found[i].mismatches]
        counts = own.sum(), mined.tokens["important"][own].sum()
        assert (row.columns["mismatches"], row.columns["important"]) == counts
        states = mismatch_states(parts.target, row.prompt_tokens, found[i].last, found[i].mismatches, CachedText())
        for name, values in states.items():
            stored = torch.from_numpy(mined.tokens[f"target_{name}"][own])
            torch.testing.assert_close(stored, values, atol=2e-5, rtol=1e-4)
    assert len(mined) > 3


def test_processes_share_the_prompts(tmp_path):
    parts = tiny_parts(seed=3)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    run(alone, labelling(parts, 5))
    for process in range(2):
        assert run(shared, labelling(parts, 5, process=Process(process, 2))) == list(range(5))[process::2]

    def labels(folder):
        tokens = load_mined(folder).tokens
        return sorted(zip(*(tokens[name].tolist() for name in ("prompt_id", "index", "important")), strict=True))

    assert labels(shared) == labels(alone)
    # One process alone would find nothing to do.
    assert run(shared, labelling(parts, 5)) == []


def test_another_number_of_processes_at_the_same_time_is_refused(tmp_path):
    parts = tiny_parts(seed=3)
    with claimed(tmp_path, Process()), pytest.raises(LossyValueError, match="process 0 of 1 is at work"):
        elsewhere(lambda: run(tmp_path, labelling(parts, 6, process=Process(1, 2))))


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
    statuses = {row.id: (row.status, row.error) for row in load_mined(tmp_path).prompts}
    assert len(statuses) == 5
    assert statuses[1] == ("failed", "ZeroDivisionError: no idea")
    assert [i for i in statuses if statuses[i][0] == "failed"] == [1]

    parts.task.moods = lambda example: False
    assert run(tmp_path, labelling(parts, 5)) == [1]
    assert len(load_mined(tmp_path).prompts) == 5


def test_a_task_that_always_raises_stops_the_run(tmp_path):
    parts = tiny_parts(task=Moody(lambda example: True))
    with pytest.raises(LossyValueError, match=r"`task`.*first 10 prompts.*ZeroDivisionError: no idea"):
        run(tmp_path, labelling(parts, 40))
    assert len(load_mined(tmp_path).prompts) == 10
    for name in ("limit", "batch_size", "max_new_tokens"):
        with pytest.raises(LossyValueError, match=f"`{name}` has to be an int >= 1, but is 0"):
            dataclasses.replace(labelling(parts, 4), **{name: 0})
    # One success is enough to go on.
    first = parts.task.examples("train", 1)[0].prompt
    parts.task.moods = lambda example: example.prompt != first
    run(tmp_path / "more", labelling(parts, 14))
    assert Counter(row.status for row in load_mined(tmp_path / "more").prompts)["failed"] == 13


def test_prompts_that_do_not_fit_are_skipped(tmp_path):
    parts = tiny_parts(seed=3)
    lengths = [len(prompt.tokens) for prompt in parts.prompts(6)]
    limit = sorted(lengths)[2]
    parts.target.config.max_position_embeddings = 24
    run(tmp_path, labelling(parts, 6, max_new_tokens=24 - limit))
    for row in load_mined(tmp_path).prompts:
        too_long = lengths[row.id] > limit
        assert (row.error or "").startswith("the prompt has") == too_long
        assert row.status == "skipped" or not too_long
    (prompt,), other = parts.prompts(1), labelling(parts, 1, target=tiny(), draft=tiny("gpt2"), max_new_tokens=100)
    fits = [other.refusal(dataclasses.replace(prompt, tokens=(3,) * n)) is None for n in (0, 1, 156, 157)]
    assert fits == [False, True, True, False]


TARGET = tiny("llama", 0)


def open_run(folder: Path, plan: Labelling, provenance: dict) -> None:
    LabelFolder(folder, {**plan.record(), "runs": [provenance]})


PLAN = labelling(Parts(TARGET, noisy_copy(TARGET), max_new_tokens=8), 4, settings={"shots": (1, 2)})
API = ApiModel("http://localhost:1/v1", "org/big")


class Renamed(Checksum):
    name = "gsm8k"


def test_a_run_is_entered(tmp_path):
    folder = tmp_path / "new" / "data"
    open_run(folder, PLAN, {"argv": ["lossy-assist", "mine"], "torch": "2"})
    open_run(folder, PLAN, {"argv": ["again"]})
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == "judge"
    assert manifest["task"] == "checksum"
    assert manifest["target"]["architecture"] == "LlamaForCausalLM"
    assert manifest["draft"]["hidden_size"] == 32
    assert manifest["settings"] == {
        "labels": "judge", "writer_dtype": None, "split": "train", "max_new_tokens": 8,
        "dtype": {"target": "float32", "draft": "float32"}, "decoding": "greedy", "api_model": None, "shots": [1, 2],
    }  # fmt: skip
    assert [run["argv"] for run in manifest["runs"]] == [["lossy-assist", "mine"], ["again"]]
    assert not list(folder.glob("*.partial"))


def test_what_may_change_from_run_to_run(tmp_path):
    open_run(tmp_path, PLAN, {})
    cheaper = JudgeLabels(mismatches=3)
    open_run(tmp_path, dataclasses.replace(PLAN, labels=cheaper, limit=9, batch_size=1), {})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"labels": RatioLabels()}, ["`kind` was 'judge' and is 'ratio'", "`rows` of `settings` was None and is 8"]),
        ({"labels": JudgeLabels(temperature=0.5)}, ["`decoding` of `settings` was 'greedy' and is {'temp"]),
        ({"task": Renamed()}, ["`task` was 'checksum' and is 'gsm8k'"]),
        ({"max_new_tokens": 9}, ["`max_new_tokens` of `settings` was 8 and is 9"]),
        ({"settings": {"shots": [1, 2], "new": 1}}, ["`new` of `settings` was None and is 1"]),
        ({"target": tiny("llama", 1)}, ["`fingerprint` of `target` was"]),
        ({"draft": tiny("qwen3")}, ["`architecture` of `draft` was 'LlamaForCausalLM' and is 'Qwen3ForCausalLM'"]),
        ({"target": None, "api": API}, ["`target` was {", "`api_model` of `settings`"]),
    ],
)
def test_another_plan_is_refused_and_named(tmp_path, changes, named):
    open_run(tmp_path, PLAN, {})
    before = (tmp_path / "manifest.json").read_text()
    with pytest.raises(LossyValueError) as caught:
        open_run(tmp_path, changed(PLAN, **changes), {})
    assert [words for words in named if words not in str(caught.value)] == []
    assert (tmp_path / "manifest.json").read_text() == before


class Shifted(Checksum):
    def examples(self, split, n):
        return super().examples(split, n + 1)[1:]


class Answered(Checksum):
    def examples(self, split, n):
        return [dataclasses.replace(one, answer="1") for one in super().examples(split, n)]


@pytest.mark.parametrize("task", [Shifted(), Answered()])
def test_other_problems_are_refused_and_more_are_not(tmp_path, task):
    open_run(tmp_path, PLAN, {})
    open_run(tmp_path, dataclasses.replace(PLAN, limit=6), {})
    open_run(tmp_path, dataclasses.replace(PLAN, limit=2), {})
    assert len(json.loads((tmp_path / "manifest.json").read_text())["problems"]) == 6
    with pytest.raises(LossyValueError, match="the problems are other ones"):
        open_run(tmp_path, changed(PLAN, task=task), {})


def test_a_plan_without_a_target_is_one_too(tmp_path):
    plan = changed(PLAN, target=None, api=API)
    open_run(tmp_path, plan, {})
    open_run(tmp_path, plan, {})
    assert json.loads((tmp_path / "manifest.json").read_text())["target"] is None
    with pytest.raises(LossyValueError, match="`target` was None and is"):
        open_run(tmp_path, PLAN, {})


def test_task_data_that_changed_are_refused(tmp_path: Path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "1 + 1"}\n')
    folder = tmp_path / "mined"
    plan = dataclasses.replace(PLAN, settings={"data": str(data)})
    open_run(folder, plan, {})
    open_run(folder, plan, {})
    data.write_text('{"question": "1 + 2"}\n')
    with pytest.raises(LossyValueError, match=r"`data_sha256` of `settings` was '.*' and is '"):
        open_run(folder, plan, {})
    # What is no file is a name.
    named = dataclasses.replace(PLAN, settings={"data": "org/dataset"})
    assert "data_sha256" not in named.record()["settings"]
