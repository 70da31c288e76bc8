"""Nothing that a pickle can hold is run, and nothing large is built from a small one."""

from __future__ import annotations

import builtins
import bz2
import contextlib
import copyreg
import gzip
import lzma
import os
import pickle
import random
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from joblib.numpy_pickle import NumpyArrayWrapper
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import StandardScaler

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.heads.autojudge import import_head, read_classifier
from hf_lossy_assist.heads.inert_pickle import read, to_array
from tests.heads.pickled import (
    DRAFT,
    TARGET,
    Calls,
    assert_refused_cheaply,
    data,
    for_vllm,
    official,
    trained,
    write_pickle,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f8", np.float16, np.int64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("write", [write_pickle, joblib.dump])
def test_arrays(dtype: Any, order: str, write: Callable, path: Path):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)
    write({"x": array, "y": array[0], "z": array[:, 1], "one": array[1, 1], "none": array[:0]}, path)
    found = read(path)
    for name, value in {"x": array, "y": array[0], "z": array[:, 1], "one": array[1, 1], "none": array[:0]}.items():
        assert np.array_equal(to_array(name, found[name]), value)


@pytest.mark.parametrize("length", [0, 1, 20, 200, -20])
def test_cut_files(length: int, path: Path):
    write_pickle(official(trained(24)), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(LossyValueError, match="can't be read as a pickle"):
        read_classifier(path)


@pytest.mark.parametrize("length", [100, 700, -3])
def test_cut_joblib_files(length: int, path: Path):
    joblib.dump(for_vllm(trained(24)), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(LossyValueError, match=r"head\.pkl' (is not a judge head|can't be read as a pickle)"):
        read_classifier(path)


def test_no_pickle_at_all(path: Path):
    path.write_text("weights: 1, 2, 3")
    with pytest.raises(LossyValueError, match="can't be read as a pickle"):
        read_classifier(path)
    with pytest.raises(LossyValueError, match="is not a file"):
        read_classifier(path.parent / "nothing.pkl")


def test_other_estimators_are_refused(path: Path):
    x, y = data(24)
    write_pickle({"model": RandomForestClassifier(2).fit(x, y), "scaler": StandardScaler().fit(x)}, path)
    with pytest.raises(LossyValueError, match=r"it names sklearn\..*nothing of it was run"):
        read_classifier(path)


def hostile(marker: Path) -> dict[str, Any]:
    """Return objects whose unpickling would leave ``marker`` behind."""
    touch = f"open({str(marker)!r}, 'w')"
    system = Calls(os.system, f"touch {marker}")
    return {
        "os.system": system,
        "os.popen": Calls(os.popen, f"touch {marker}"),
        "eval": Calls(eval, touch),
        "exec": Calls(exec, touch),
        "open": Calls(open, str(marker), "w"),
        "getattr": Calls(getattr, Calls(__import__, "os"), "system"),
        "numpy.load": Calls(np.load, str(marker), None, True),
        "numpy.testing": Calls(np.testing._private.utils.runstring, touch, {}),
        "numpy.memmap": Calls(np.memmap, str(marker), "uint8", "w+", 0, (1,)),
        "numpy.ndarray.tofile": Calls(np.ndarray.tofile, np.zeros(1), str(marker)),
        "joblib.load": Calls(joblib.load, str(marker)),
        "torch.load": Calls(torch.load, str(marker)),
        "nested": {"model": {"deep": [(1, Calls(OrderedDict, Calls(list, system)))]}},
        "beside good arrays": for_vllm(trained(8)) | {"thr": system},
        "state of an array": Calls(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=system),
        "argument of an array": Calls(np._core.multiarray._reconstruct, system, (0,), b"b"),
        "inside an object array": np.array([system], dtype=object),
        "setattr": Calls(builtins.setattr, OrderedDict, "a", 1),
    }


HOSTILE = tuple(hostile(Path("/tmp/x")))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name: str, protocol: int, path: Path, tmp_path: Path):
    marker = tmp_path / "marker"
    write_pickle(hostile(marker)[name], path, protocol)
    with pytest.raises(LossyValueError, match=r"it names \S+\.\S+, which a judge head has no use for"):
        read_classifier(path)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["os.system", "nested", "beside good arrays", "inside an object array"])
def test_hostile_joblib_files(name: str, path: Path, tmp_path: Path):
    marker = tmp_path / "marker"
    joblib.dump(hostile(marker)[name], path)
    with pytest.raises(LossyValueError, match=r"can't be read as a pickle"):
        read_classifier(path)
    assert not marker.exists()


def test_the_hostile_files_would_work(tmp_path: Path):
    """With the ordinary unpickler, that is; otherwise the tests above would show nothing."""
    for name in ("os.system", "eval", "nested", "inside an object array"):
        marker = tmp_path / name.replace(" ", "-")
        with contextlib.suppress(TypeError):  # what comes back is no good, but by then it has happened
            pickle.loads(pickle.dumps(hostile(marker)[name]))
        assert marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'touch MARKER'\ntR.",  # GLOBAL
        b"(S'touch MARKER'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch MARKER'\no.",  # OBJ
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch MARKER\x85R.",  # STACK_GLOBAL
        b"\x80\x04\x8c\x05numpy\x8c\x11os.path.os.system\x93\x8c\x01x\x85R.",  # a dotted name
        b"\x80\x04\x8c\x08builtins\x8c\x11object.__class__.\x93.",
        b"\x82\x01.",  # EXT1
        b"Pid\n.",  # PERSID
        b"\x80\x05\x97.",  # NEXT_BUFFER
        b"cnumpy\nndarray\n}S'__setstate__'\nI1\nsb.",  # BUILD on a class
        b"cnumpy\nndarray\n(N}S'__setstate__'\nI1\nstb.",  # its slots
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 62) + b".",  # BYTEARRAY8 without end
    ],
)
def test_hostile_programs(program: bytes, path: Path, tmp_path: Path):
    marker = tmp_path / "m"
    path.write_bytes(program.replace(b"MARKER", str(marker).encode()))
    with pytest.raises(LossyValueError, match="can't be read as a pickle"):
        read_classifier(path)
    assert not marker.exists()


def test_registered_extensions_are_refused(path: Path, tmp_path: Path):
    copyreg.add_extension(os.system.__module__, "system", 0x77)
    try:
        write_pickle(Calls(os.system, f"touch {tmp_path / 'marker'}"), path, 2)
        pickle.loads(pickle.dumps(os.system, 2))  # now the extension's cache holds it
        with pytest.raises(LossyValueError, match="the extension 119"):
            read_classifier(path)
    finally:
        copyreg.remove_extension(os.system.__module__, "system", 0x77)
        copyreg._extension_cache.clear()
    assert not (tmp_path / "marker").exists()


def joblib_array(shape: Any, alignment: int | None = None) -> bytes:
    """Return a joblib file whose ``weights`` say that they have another shape than they have."""
    state = {"subclass": np.ndarray, "shape": shape, "order": "C", "dtype": np.dtype("f8"), "allow_mmap": True}
    wrapper = NumpyArrayWrapper.__new__(NumpyArrayWrapper)
    wrapper.__dict__.update(state, numpy_array_alignment_bytes=alignment)
    return pickle.dumps({"mean": wrapper, "scale": 1, "weights": 1, "bias": 1})


def nested(levels: int, leaf: bytes = b"K\x01", pair: bytes = b"\x86") -> bytes:
    """Return a program for pairs of the same pair of the same pair …: 2^levels leaves in few bytes."""
    return leaf + b"".join(b"q%ch%c" % (i, i) + pair for i in range(levels))


def as_value(name: str, program: bytes, rest: dict[str, Any] | None = None) -> bytes:
    """Return a pickle of a head for vLLM, in which the value of one name is what a program makes."""
    content = for_vllm(trained(24)) if rest is None else rest
    whole = pickle.dumps({key: value for key, value in content.items() if key != name}, 2)
    key = b"X" + struct.pack("<I", len(name)) + name.encode()
    return whole[:-1] + key + program + b"s."


BOMBS = {
    "bytes of a length": b"\x80\x05\x96" + struct.pack("<Q", 3 << 30) + b".",
    "a memo of a length": b"\x80\x04Nr" + struct.pack("<I", (1 << 32) - 1) + b".",
    "a frame of a length": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "a number of many digits": b"I" + b"9" * 100_000 + b"\n.",
    "a number of many bytes": b"\x8b" + struct.pack("<I", 1 << 20) + b"\x7f" * (1 << 20) + b".",
    "many instructions": b"(" + b"N" * 3_000_000 + b"l.",
    "tuples in tuples": b")" + b"\x85" * 1_000_000 + b".",
    "tuples in tuples as a key": b"})" + b"\x85" * 150_000 + b"Ns.",
    "pairs of the same as a key": b"}" + nested(60) + b"Ns.",
    "lists in lists": as_value("mean", b"]" + b"]a" * 90_000),
    "pairs of the same": as_value("mean", nested(60)),
    "pairs of the same as thresholds": as_value("thresholds", nested(60)),
    "pairs of the same as a class": as_value("model", nested(60), {"scaler": 1}),
    "gzip": lambda: gzip.compress(bytes(1 << 28), 1),
    "zlib": lambda: zlib.compress(bytes(1 << 28), 1),
    "bz2": lambda: bz2.compress(bytes(1 << 28)),
    "xz": lambda: lzma.compress(bytes(1 << 28), preset=0),
    "a dictionary of lzma": b"]\x00" + struct.pack("<IQ", (1 << 32) - 1, (1 << 64) - 1)[1:] + bytes(100),
    "a joblib array of a length": joblib_array((1 << 40,)),
    "a joblib array of two lengths": joblib_array((1 << 40, 0)),
    "a joblib array of no length": joblib_array((-1,)),
    "a joblib array of a list": joblib_array("many"),
    "a joblib array of a huge length": joblib_array((1 << 100_000,)),
    "a joblib array behind nothing": joblib_array((1,), 16),
}


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
                damaged = bytearray(good)
                for _ in range(generator.randint(1, 4)):
                    damaged[generator.randrange(len(damaged))] = generator.randrange(256)
                path.write_bytes(damaged)
                with contextlib.suppress(LossyValueError):
                    assert import_head(path, TARGET, DRAFT, task="gsm8k").weight.isfinite().all()


def test_strange_arrays_are_refused(path: Path):
    """A dtype that NumPy would take apart, and shapes that do not fit the bytes."""
    structured = np.zeros(3, dtype=[("a", "f8"), ("b", "O")])
    for value in (structured, np.zeros(3, "S5"), np.zeros(3, "M8[s]"), np.array([1j])):
        write_pickle({"x": value}, path)
        with pytest.raises(LossyValueError, match="`x` has to be an array of numbers"):
            to_array("x", read(path)["x"])
    program = pickle.dumps(np.zeros(3), 2).replace(b"K\x03\x85", b"K\x7f\x85")
    path.write_bytes(program)
    with pytest.raises(LossyValueError, match="`x` has to be an array of numbers"):
        to_array("x", read(path))
