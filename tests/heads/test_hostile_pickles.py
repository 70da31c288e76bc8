"""Nothing that a pickle can hold is run, and nothing large is built from a small one."""

from __future__ import annotations

import contextlib
import copyreg
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import StandardScaler

from hf_lossy_assist import LossyValueError
from tests.heads.pickled import (
    BOMBS,
    HOSTILE,
    PROGRAMS,
    Calls,
    as_value,
    assert_refused_cheaply,
    convert,
    damaged,
    data,
    for_vllm,
    hostile,
    official,
    trained,
    write_pickle,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f8", np.float16, np.int64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("write", [write_pickle, joblib.dump])
def test_arrays(dtype: Any, order: str, write: Callable, path: Path):
    weights = np.asarray(np.arange(24).reshape(4, 6), dtype=dtype, order=order)
    moments = {"mean": np.zeros(48, dtype)[::2], "scale": np.ones((4, 6), dtype)[:, ::-1]}
    write({"weights": weights, "bias": weights[1, 1], "thresholds": weights[0, :0]} | moments, path)
    head = convert(path)
    assert head.weight.tolist() == list(range(24))
    assert head.bias == 7


@pytest.mark.parametrize("length", [0, 1, 20, 200, -20])
def test_cut_files(length: int, path: Path):
    write_pickle(official(trained(24)), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(LossyValueError, match="can't be read as a pickle"):
        convert(path)


@pytest.mark.parametrize("length", [100, 700, -3])
def test_cut_joblib_files(length: int, path: Path):
    joblib.dump(for_vllm(trained(24)), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(LossyValueError, match=r"head\.pkl' (is not a judge head|can't be read as a pickle)"):
        convert(path)


def test_no_pickle_at_all(path: Path):
    path.write_text("weights: 1, 2, 3")
    with pytest.raises(LossyValueError, match="can't be read as a pickle"):
        convert(path)
    with pytest.raises(LossyValueError, match="is not a file"):
        convert(path.parent / "nothing.pkl")


def test_other_estimators_are_refused(path: Path):
    x, y = data(24)
    write_pickle({"model": RandomForestClassifier(2).fit(x, y), "scaler": StandardScaler().fit(x)}, path)
    with pytest.raises(LossyValueError, match=r"it names sklearn\..*nothing was run"):
        convert(path)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name: str, protocol: int, path: Path, tmp_path: Path):
    marker = tmp_path / "marker"
    write_pickle(hostile(marker)[name], path, protocol)
    with pytest.raises(LossyValueError, match=r"it names \S+\.\S+, which a judge head does not need"):
        convert(path)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["os.system", "nested", "beside good arrays", "inside an object array"])
def test_hostile_joblib_files(name: str, path: Path, tmp_path: Path):
    marker = tmp_path / "marker"
    joblib.dump(hostile(marker)[name], path)
    with pytest.raises(LossyValueError, match=r"can't be read as a pickle"):
        convert(path)
    assert not marker.exists()


def test_the_hostile_files_would_work(tmp_path: Path):
    """With the ordinary unpickler, that is; otherwise the tests above would show nothing."""
    for name in ("os.system", "eval", "nested", "inside an object array"):
        marker = tmp_path / name.replace(" ", "-")
        with contextlib.suppress(TypeError):  # what comes back is no good, but by then it has happened
            pickle.loads(pickle.dumps(hostile(marker)[name]))
        assert marker.exists()


@pytest.mark.parametrize("program", PROGRAMS)
def test_hostile_programs(program: bytes, path: Path, tmp_path: Path):
    marker = tmp_path / "m"
    path.write_bytes(program.replace(b"MARKER", str(marker).encode()))
    with pytest.raises(LossyValueError, match="can't be read as a pickle"):
        convert(path)
    assert not marker.exists()


def test_registered_extensions_are_refused(path: Path, tmp_path: Path):
    copyreg.add_extension(os.system.__module__, "system", 0x77)
    try:
        write_pickle(Calls(os.system, f"touch {tmp_path / 'marker'}"), path, 2)
        pickle.loads(pickle.dumps(os.system, 2))  # now the extension's cache holds it
        with pytest.raises(LossyValueError, match="the extension 119"):
            convert(path)
    finally:
        copyreg.remove_extension(os.system.__module__, "system", 0x77)
        copyreg._extension_cache.clear()
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_anything_is_built(name: str, path: Path):
    bomb = BOMBS[name]
    path.write_bytes(bomb() if callable(bomb) else bomb)
    assert_refused_cheaply(path, "head.pkl")


def test_large_files_are_not_read(path: Path):
    with path.open("wb") as file:
        file.truncate(1 << 33)
    assert_refused_cheaply(path, r"8,589,934,592 bytes, and a judge head has no more than")


def test_an_array_of_few_bytes_for_many_numbers(path: Path):
    write_pickle(for_vllm(trained(24)) | {"mean": np.zeros(1 << 24, np.int8)}, path)
    assert_refused_cheaply(path, "`mean` .* more numbers than")


def test_names_are_not_repeated_at_length(path: Path):
    name = "ab" * 100_000
    path.write_bytes(b"c" + name.encode() + b"\nx\n.")
    assert_refused_cheaply(path, "it names abab")
    write_pickle({name: 1, "\ud800": 2, 10**5000: 3}, path)
    assert_refused_cheaply(path, "but holds")
    path.write_bytes(b"\x8c\x03\xed\xa0\x80\x8c\x01x\x93.")
    assert_refused_cheaply(path, "it names ")


@pytest.mark.parametrize("seed", range(20))
def test_damaged_files_give_one_kind_of_error(seed: int, path: Path):
    """Flip bytes of good files: what comes out is a head or our error, which names the file."""
    generator = random.Random(seed)
    pipeline = trained(24)
    for write in (write_pickle, joblib.dump):
        for layout in (official, for_vllm):
            write(layout(pipeline), path)
            good = path.read_bytes()
            for _ in range(10):
                path.write_bytes(damaged(good, generator))
                with contextlib.suppress(LossyValueError):
                    assert convert(path).weight.isfinite().all()


def test_strange_arrays_are_refused(path: Path):
    """A dtype that NumPy would take apart, and shapes that do not fit the bytes."""
    structured = np.zeros(3, dtype=[("a", "f8"), ("b", "O")])
    for value in (structured, np.zeros(3, "S5"), np.zeros(3, "M8[s]"), np.array([1j]), np.zeros((1, 1, 24))):
        write_pickle(for_vllm(trained(24)) | {"mean": value}, path)
        assert_refused_cheaply(path, "`mean` has to be an array of numbers")
    program = pickle.dumps(np.zeros(3), 2)[2:-1].replace(b"K\x03\x85", b"K\x7f\x85")
    path.write_bytes(as_value("mean", program))
    assert_refused_cheaply(path, "`mean` has to be an array of numbers")
