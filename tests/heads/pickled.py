"""AutoJudge's files, as its scripts write them, and how others are refused."""

from __future__ import annotations

import builtins
import bz2
import gzip
import lzma
import os
import pickle
import random
import struct
import tracemalloc
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
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_lossy_assist import JudgeHead, LossyValueError
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.heads.autojudge import import_head

TARGET = ModelIdentity("org/large", None, "LlamaForCausalLM", 24, 100)
DRAFT = ModelIdentity("org/small", None, "LlamaForCausalLM", 8, 100)
THRESHOLDS = np.linspace(0.01, 0.9, 26)
MOST_MEMORY = 200 << 20


def data(width: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = (generator.normal(size=(200, width)) * np.logspace(-1, 2, width) + 5).astype(np.float32)
    return x, ((x - 5) / np.logspace(-1, 2, width))[:, :5].sum(1) > 0


def trained(width: int, **scaling: bool) -> Pipeline:
    x, y = data(width)
    return make_pipeline(StandardScaler(**scaling), LogisticRegression(C=0.1)).fit(x, y.astype(int))


def official(pipeline: Pipeline) -> dict:
    """As train_head_gsm8k.py dumps it."""
    return {"model": pipeline[1], "scaler": pipeline[0], "thresholds": THRESHOLDS.tolist()}


def for_vllm(pipeline: Pipeline) -> dict:
    """As train_head_gsm8k.py --convert_to_vllm dumps it."""
    scaler, model = pipeline
    return {
        "mean": scaler.mean_,
        "scale": scaler.scale_,
        "weights": model.coef_[0],
        "bias": model.intercept_,
        "thr": 0.25,
        "thresholds": THRESHOLDS.tolist(),
    }


def convert(path: Path, **options: Any) -> JudgeHead:
    return import_head(path, TARGET, DRAFT, task="gsm8k", **options)


def write_pickle(content: Any, path: Path, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


class Calls:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Callable, *arguments: Any, state: Any = None) -> None:
        self.recipe = (function, arguments, state)

    def __reduce__(self) -> tuple:
        return self.recipe


def assert_refused_cheaply(path: Path, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LossyValueError, match=message) as caught:
            convert(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000


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
PROGRAMS = [
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
]


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


def damaged(good: bytes, generator: random.Random) -> bytes:
    """Return a file of which a few bytes have changed."""
    content = bytearray(good)
    for _ in range(generator.randint(1, 4)):
        content[generator.randrange(len(content))] = generator.randrange(256)
    return bytes(content)
