"""Plans of label folders: what a run notes, what may change, and what is refused and named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.tasks.api_model import ApiModel
from hf_lossy_assist.training.judge_labels import JudgeLabels
from hf_lossy_assist.training.labelling import LabelFolder, Labelling
from hf_lossy_assist.training.ratio_labels import RatioLabels
from tests.small_pair import changed
from tests.tiny_models import noisy_copy, tiny
from tests.training.parts import Checksum, Parts, labelling

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
