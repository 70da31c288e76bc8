"""Shards: nothing is lost, nothing is there twice, whenever a process dies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.store import folder as files
from hf_lossy_assist.store import shards as storage
from hf_lossy_assist.store.shards import ShardStore, prompt_rows
from hf_lossy_assist.training.label_folder import load_mined
from hf_lossy_assist.training.ratio_labels import ratio_schemas
from tests.training.shards import SCHEMAS, assert_holds, elsewhere, put, row, write_manifest


@pytest.fixture
def folder(tmp_path):
    write_manifest(tmp_path)
    return tmp_path


def test_rows_come_back_as_they_went(folder):
    with ShardStore(folder, 0, SCHEMAS) as store:
        for prompt in range(7):
            put(store, prompt)
            # On the disk, and readable by others, before the next one.
            assert_holds(folder, range(prompt + 1))
    assert_holds(folder, range(7))
    assert len(list(folder.glob("*.parquet"))) == 2
    mined = load_mined(folder)
    assert mined.manifest["kind"] == "judge"
    assert mined.tokens.features["target_draft"].length == 4
    assert [row["mismatches"] for row in prompt_rows(folder)] == [0, 1, 2, 3, 0, 1, 2]
    assert "prompt" not in prompt_rows(folder)[0]


def test_finished_prompts_are_joined_now_and_then(folder, monkeypatch):
    monkeypatch.setattr(storage, "_PER_SHARD", 4)
    with ShardStore(folder, 0, SCHEMAS) as store:
        for prompt in range(10):
            put(store, prompt)
            assert len(list(folder.glob("prompts-*.parquet"))) <= 4 + 2
    assert sorted(path.name for path in folder.glob("prompts-*.parquet")) == [
        "prompts-000-0000000-0000003.parquet",
        "prompts-000-0000004-0000007.parquet",
        "prompts-000-0000008-0000009.parquet",
    ]
    assert_holds(folder, range(10))


class Killed(BaseException):
    pass


def test_a_death_at_any_moment_loses_nothing(folder, monkeypatch):
    """Die at every single write, rename, removal and flush of a run in turn; every time go on after it."""
    monkeypatch.setattr(storage, "_PER_SHARD", 3)
    calls = {"left": 0}

    def mortal(function):
        def wrapped(*args, **kwargs):
            if calls["left"] == 0:
                raise Killed
            calls["left"] -= 1
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(files.os, "replace", mortal(os.replace))
    monkeypatch.setattr(files.os, "fsync", mortal(os.fsync))
    monkeypatch.setattr(Path, "unlink", mortal(Path.unlink))
    write = Path.write_bytes

    def half_written(path, content):
        write(path, content[: len(content) // 2])
        mortal(lambda: None)()
        write(path, content)

    monkeypatch.setattr(Path, "write_bytes", half_written)
    total, deaths, told = 8, 0, []
    for budget in range(1, 400):
        calls["left"] = budget % 37
        try:
            with ShardStore(folder, 0, SCHEMAS) as store:
                finished = store.finished()
                # What was reported as finished is still there.
                assert set(told) <= finished
                for prompt in sorted(set(range(total)) - finished):
                    put(store, prompt)
                    told.append(prompt)
            calls["left"] = 10_000
        except Killed:
            deaths += 1
            calls["left"] = 10_000
        finished = ShardStore(folder, 0, SCHEMAS).finished()
        if finished:
            assert_holds(folder, finished)
        if finished == set(range(total)) and deaths > 30:
            break
        if finished == set(range(total)):
            for path in [*folder.glob("*.parquet"), *folder.glob("*.partial")]:
                path.unlink()
            told = []
    assert deaths > 30
    assert_holds(folder, range(total))


def test_leftovers_are_ignored_and_cleared_away(folder):
    with ShardStore(folder, 0, SCHEMAS) as store:
        put(store, 1)
    (folder / "tokens-000-0000001-0000001.parquet.partial").write_bytes(b"PAR1 rubbish")
    (folder / "prompts-000-0000001-0000001.parquet.partial").write_bytes(b"")
    # Labels whose prompt never got its name.
    (folder / "tokens-000-0000001-0000001.parquet").write_bytes(b"rubbish")
    assert_holds(folder, [1])
    with ShardStore(folder, 0, SCHEMAS) as store:
        assert store.finished() == {1}
        put(store, 2)
    assert_holds(folder, [1, 2])
    assert not list(folder.glob("*.partial"))


def test_a_join_that_was_broken_off_leaves_nothing_twice(folder):
    """Its process died before it removed the single prompts that the larger shard has."""
    with ShardStore(folder, 0, SCHEMAS) as store:
        for prompt in range(5):
            put(store, prompt)
        single = {path: path.read_bytes() for path in folder.glob("*-000-*")}
    for path, content in single.items():
        path.write_bytes(content)
    assert_holds(folder, range(5))
    with ShardStore(folder, 0, SCHEMAS) as store:
        assert store.finished() == set(range(5))
        assert len(list(folder.glob("*.parquet"))) == 2
        put(store, 5)
    assert_holds(folder, range(6))


def test_every_process_has_its_own_shards(folder):
    with ShardStore(folder, 0, SCHEMAS, 2) as first, ShardStore(folder, 1, SCHEMAS, 2) as second:
        for prompt in range(6):
            put(second if prompt % 2 else first, prompt)
        assert first.finished() == second.finished() == set(range(6))
        with pytest.raises(LossyValueError, match="no other run"):
            elsewhere(ShardStore(folder, 1, SCHEMAS, 2).__enter__)
    with ShardStore(folder, 2, SCHEMAS, 3) as third, ShardStore(folder, 1, SCHEMAS, 3):
        assert third.finished() == set(range(6))
        put(third, 6)
    assert_holds(folder, range(7))


def test_failures_may_be_tried_again(folder):
    with ShardStore(folder, 0, SCHEMAS) as store:
        store.add({**row(1, "failed"), "error": "ZeroDivisionError: no idea"}, {})
        store.add({**row(2, "failed"), "error": "again"}, {})
        assert store.finished() == set()
        put(store, 1)
        store.add({**row(2, "failed"), "error": "and again"}, {})
        assert store.finished() == {1}
    with ShardStore(folder, 1, SCHEMAS) as later:
        later.add({**row(1, "failed"), "error": "elsewhere"}, {})
    by_id = {one["prompt_id"]: (one["status"], one["error"]) for one in load_mined(folder).prompts}
    assert by_id == {1: ("mined", None), 2: ("failed", "and again")}


def test_ratio_rows(folder):
    with ShardStore(folder, 0, ratio_schemas(3)) as store:
        tokens = {
            "kind": np.array(["prompt", "draft"]), "index": [0, 4], "token": [5, 6], "p": [0.5, 0.25], "q": [0.1, 1.0],
            "previous": np.zeros((2, 3), np.float32), "token_state": np.ones((2, 3), np.float32),
        }  # fmt: skip
        store.add(row(4, rows=2), tokens)
        store.add(row(5, "skipped"), {})
    mined = load_mined(folder)
    assert mined.tokens[1] == {
        "prompt_id": 4, "kind": "draft", "index": 4, "token": 6, "p": 0.25, "q": 1.0, "previous": [0.0] * 3,
        "token_state": [1.0] * 3,
    }  # fmt: skip
    assert mined.prompts["status"][:] == ["mined", "skipped"]


def test_folders_without_data_are_clear_errors(tmp_path, folder):
    with pytest.raises(LossyValueError, match=r"manifest\.json.*No such file"):
        load_mined(tmp_path / "nowhere")
    with pytest.raises(LossyValueError, match="has none yet"):
        load_mined(folder)
    with ShardStore(folder, 0, SCHEMAS) as store:
        put(store, 3)
    path = folder / "tokens-000-0000000-0000000.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LossyValueError, match="can't be read"):
        load_mined(folder)
    path.unlink()
    with pytest.raises(LossyValueError, match="one is missing"):
        load_mined(folder)
