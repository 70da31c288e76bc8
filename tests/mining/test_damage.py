"""Damaged folders, other processes and full disks: found, mined again, or refused with our error."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.mining.mining_run import MiningPlan, load_mined, open_run
from hf_lossy_assist.store import folder as files
from hf_lossy_assist.store import shards as storage
from hf_lossy_assist.store.process import Process
from hf_lossy_assist.store.shards import ShardStore, prompt_rows
from tests.mining.parts import judge, run, tiny_parts, workload
from tests.mining.shards import SCHEMAS, assert_holds, put, write_manifest
from tests.tiny_models import noisy_copy, tiny

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
        with ShardStore(folder, 1, SCHEMAS):
            assert (folder / "prompts-000-0000000-0000000.parquet").exists()


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
    open_run(tmp_path, MiningPlan("judge", parts.task.name, parts.target, parts.draft, {}), {})
    refused = pytest.raises(LossyValueError, match=r"process 0 of 1 is at work, and this is 1 of 2")
    with ShardStore(tmp_path, 0, judge(parts).schemas()), refused:
        run(tmp_path, parts, workload(parts, 6, process=Process(1, 2)))
    for process in range(2):
        run(tmp_path, parts, workload(parts, 6, process=Process(process, 2)))
    mined = load_mined(tmp_path)
    labels = Counter(mined.tokens["prompt_id"])
    assert all(labels[row["prompt_id"]] == row["mismatches"] for row in mined.prompts)


def test_processes_of_one_run_share_a_folder(folder: Path):
    with ShardStore(folder, 0, SCHEMAS, 2) as first, ShardStore(folder, 1, SCHEMAS, 2) as second:
        put(first, 0)
        put(second, 1)
        assert first.finished() == second.finished() == {0, 1}
    with ShardStore(folder, 2, SCHEMAS, 3) as third, ShardStore(folder, 1, SCHEMAS, 3):
        assert third.finished() == {0, 1}
        put(third, 2)
    assert_holds(folder, range(3))


def plan(**settings) -> MiningPlan:
    return MiningPlan("judge", "gsm8k", TARGET, noisy_copy(TARGET), settings)


def test_task_data_that_changed_are_refused(tmp_path: Path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "1 + 1"}\n')
    folder = tmp_path / "mined"
    open_run(folder, plan(task_data=str(data)), {})
    open_run(folder, plan(task_data=str(data)), {})
    data.write_text('{"question": "1 + 2"}\n')
    with pytest.raises(LossyValueError, match=r"`task_data_sha256` was '.*' and is '"):
        open_run(folder, plan(task_data=str(data)), {})


def test_task_data_that_are_no_file_are_names(tmp_path: Path):
    open_run(tmp_path, plan(task_data="org/dataset"), {})
    assert "task_data_sha256" not in json.loads((tmp_path / "manifest.json").read_text())["settings"]


def test_a_file_is_no_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LossyValueError, match="`out` has to be a folder to write to"):
            open_run(out, plan(), {})


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
        open_run(folder.parent / "new", plan(), {})


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


@pytest.mark.parametrize("name", BROKEN)
def test_broken_manifests(name: str, tmp_path: Path):
    open_run(tmp_path, plan(), {})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    BROKEN[name](manifest)
    text = json.dumps(manifest)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(LossyValueError) as caught:
        open_run(tmp_path, plan(), {})
    assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "manifest.json").read_text() == text


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b"null"])
def test_manifests_that_are_none(content: bytes, tmp_path: Path):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(LossyValueError, match=r"manifest\.json"):
        open_run(tmp_path, plan(), {})
    with pytest.raises(LossyValueError, match=r"manifest\.json"):
        load_mined(tmp_path)
