"""Damaged folders, other processes and full disks: found, mined again, or refused with our error."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.store import folder as files
from hf_lossy_assist.store import shards as storage
from hf_lossy_assist.store.folder import Process
from hf_lossy_assist.store.shards import ShardStore, prompt_rows
from hf_lossy_assist.tasks.api_model import ApiModel
from hf_lossy_assist.training.label_folder import load_mined, open_run
from hf_lossy_assist.training.labels import JudgeLabels, RatioLabels, SelfLabels
from tests.tiny_models import noisy_copy, tiny
from tests.training.parts import Checksum, Parts, judge, labelling, run, tiny_parts
from tests.training.shards import SCHEMAS, assert_holds, elsewhere, put, write_manifest

TARGET = tiny("llama", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_manifest(tmp_path)
    return tmp_path


def fill(folder: Path, prompts: range, process: int = 0) -> None:
    with ShardStore(folder, process, SCHEMAS) as store:
        for prompt in prompts:
            put(store, prompt)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_byte_is_found_and_its_prompts_are_mined_again(folder: Path, seed: int, monkeypatch):
    monkeypatch.setattr(storage, "_PER_SHARD", 4)
    fill(folder, range(9))
    generator = random.Random(seed)
    whole = {path: path.read_bytes() for path in shards(folder)}
    for path, content in whole.items():
        damaged = bytearray(content)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(LossyValueError, match="repeat the `mine` command") as caught:
            load_mined(folder)
        assert path.name in str(caught.value)
        path.write_bytes(content)
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match="Its prompts will be mined again"):
        fill(folder, range(0))
    with ShardStore(folder, 0, SCHEMAS) as store:
        missing = set(range(9)) - store.finished()
        assert 0 < len(missing) < 9
        for prompt in sorted(missing):
            put(store, prompt)
    assert_holds(folder, range(9))


@pytest.mark.parametrize("table", ["tokens", "prompts"])
@pytest.mark.parametrize("entering", [0, 1])
def test_a_missing_file_is_mined_again(folder: Path, table: str, entering: int):
    """By whichever process comes next, if the one whose file it was is not at work."""
    fill(folder, range(4))
    next(folder.glob(f"{table}-*.parquet")).unlink()
    warned = pytest.warns(UserWarning, match="Its prompts") if table == "tokens" else nullcontext()
    with warned, ShardStore(folder, entering, SCHEMAS) as store:
        assert store.finished() == set()
        for prompt in range(4):
            put(store, prompt)
    assert_holds(folder, range(4))


def test_a_process_at_work_keeps_its_files(folder: Path):
    with ShardStore(folder, 0, SCHEMAS) as first:
        put(first, 1)
        (folder / "tokens-000-0000000-0000000.parquet").write_bytes(b"rubbish")

        def enter() -> None:
            with ShardStore(folder, 1, SCHEMAS):
                assert (folder / "prompts-000-0000000-0000000.parquet").exists()

        elsewhere(enter)


def test_prompts_that_two_processes_mined_count_once(folder: Path):
    fill(folder, range(6))
    other = folder / "other"
    other.mkdir()
    fill(other, range(3, 9), process=1)
    for path in other.glob("*-*"):
        shutil.copy(path, folder)
    assert_holds(folder, range(9))
    assert len(prompt_rows(folder)) == 9


def test_data_without_checksums_can_be_read(folder: Path):
    fill(folder, range(5))
    for path in folder.glob("*.sha256"):
        path.unlink()
    assert_holds(folder, range(5))


def test_another_number_of_processes_at_the_same_time_is_refused(tmp_path: Path):
    parts = tiny_parts(seed=3)
    open_run(tmp_path, labelling(parts, 6), {})
    refused = pytest.raises(LossyValueError, match="process 0 of 1 is at work")
    with ShardStore(tmp_path, 0, judge(parts).schemas()), refused:
        elsewhere(lambda: run(tmp_path, labelling(parts, 6, process=Process(1, 2))))
    for process in range(2):
        run(tmp_path, labelling(parts, 6, process=Process(process, 2)))
    mined = load_mined(tmp_path)
    labels = Counter(mined.tokens["prompt_id"])
    assert all(labels[row["prompt_id"]] == row["mismatches"] for row in mined.prompts)


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
    cheaper = JudgeLabels(mismatches=3, only_solved=True, workers=2)
    open_run(tmp_path, dataclasses.replace(PLAN, labels=cheaper, limit=9, batch_size=1), {})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"labels": RatioLabels()}, ["`kind` was 'judge' and is 'ratio'", "`labels`", "`rows` was None and is 8"]),
        ({"labels": SelfLabels()}, ["`labels` was 'judge' and is 'self'", "`horizon`"]),
        ({"labels": JudgeLabels(temperature=0.5)}, ["`decoding` was 'greedy' and is {'temp"]),
        ({"task": Renamed()}, ["`task` was 'checksum' and is 'gsm8k'"]),
        ({"max_new_tokens": 9}, ["`max_new_tokens` was 8 and is 9;"]),
        ({"settings": {"shots": [1, 2], "new": 1}}, ["`new` was None and is 1"]),
        ({"target": tiny("llama", 1)}, ["of the target, the weights of the LM head differ"]),
        ({"draft": tiny("qwen3")}, ["of the draft, the architecture is Qwen3ForCausalLM, not LlamaForCausalLM"]),
        ({"target": None, "api": API}, ["of the target, there is none", "`api_model`"]),
    ],
)
def test_another_plan_is_refused_and_named(tmp_path, changes, named):
    open_run(tmp_path, PLAN, {})
    before = (tmp_path / "manifest.json").read_text()
    with pytest.raises(LossyValueError) as caught:
        open_run(tmp_path, dataclasses.replace(PLAN, **changes), {})
    assert [words for words in named if words not in str(caught.value)] == []
    assert (tmp_path / "manifest.json").read_text() == before


def test_a_plan_without_a_target_is_one_too(tmp_path):
    plan = dataclasses.replace(PLAN, target=None, api=API)
    open_run(tmp_path, plan, {})
    open_run(tmp_path, plan, {})
    assert json.loads((tmp_path / "manifest.json").read_text())["target"] is None
    with pytest.raises(LossyValueError, match="there was none"):
        open_run(tmp_path, PLAN, {})


def test_task_data_that_changed_are_refused(tmp_path: Path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "1 + 1"}\n')
    folder = tmp_path / "mined"
    plan = dataclasses.replace(PLAN, settings={"data": str(data)})
    open_run(folder, plan, {})
    open_run(folder, plan, {})
    data.write_text('{"question": "1 + 2"}\n')
    with pytest.raises(LossyValueError, match=r"`data_sha256` was '.*' and is '"):
        open_run(folder, plan, {})
    # What is no file is a name.
    named = dataclasses.replace(PLAN, settings={"data": "org/dataset"})
    assert "data_sha256" not in named.record()["settings"]


def test_a_file_is_no_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LossyValueError, match="`out` has to be a place to write to"):
            open_run(out, PLAN, {})


def full(*args: object, **kwargs: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_keeps_what_was_mined(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with ShardStore(folder, 0, SCHEMAS) as store:
        put(store, 1)
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", full)
            with pytest.raises(LossyValueError, match=r"No space left on device.*what was there before is kept"):
                put(store, 2)
        assert not list(folder.glob("*.partial"))
        put(store, 3)
    assert_holds(folder, [1, 3])
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LossyValueError, match="No space left on device"):
        open_run(folder.parent / "new", PLAN, {})


BROKEN = {
    "no runs": lambda m: m.pop("runs"),
    "runs": lambda m: m.update(runs="x"),
    "settings": lambda m: m.update(settings=[1]),
    "kind": lambda m: m.update(kind=["judge"]),
    "task": lambda m: m.update(task=3),
    "draft": lambda m: m.update(draft="x"),
    "draft lacks": lambda m: m["draft"].pop("hidden_size"),
    "draft size": lambda m: m["draft"].update(hidden_size="32"),
    "target": lambda m: m.update(target=[1]),
    "target lacks": lambda m: m["target"].pop("name"),
    "fingerprint": lambda m: m["target"].update(fingerprint="x"),
    "nothing": lambda m: m.clear(),
}
NONE = {
    "empty": b"", "another encoding": b"\xff\xfe", "deep": b"[" * 100_000, "long": b"1" * 10_000, "null": b"null",
    "cut off": b"{", "a list": b"[]", "of something else": b'{"a": 1}',
}  # fmt: skip


@pytest.mark.parametrize("name", [*BROKEN, *NONE])
def test_broken_manifests(name: str, tmp_path: Path):
    open_run(tmp_path, PLAN, {})
    path = tmp_path / "manifest.json"
    if name in BROKEN:
        manifest = json.loads(path.read_text())
        BROKEN[name](manifest)
        path.write_text(json.dumps(manifest))
    else:
        path.write_bytes(NONE[name])
        with pytest.raises(LossyValueError, match=r"manifest\.json"):
            load_mined(tmp_path)
    content = path.read_bytes()
    with pytest.raises(LossyValueError, match=r"manifest\.json") as caught:
        open_run(tmp_path, PLAN, {})
    assert str(tmp_path) in str(caught.value)
    assert path.read_bytes() == content
