"""Importing AutoJudge's heads, and refusing everything else that a pickle can hold."""

from __future__ import annotations

import builtins
import bz2
import contextlib
import copyreg
import gzip
import json
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
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from hf_lossy_assist import JudgeHead, LossyValueError
from hf_lossy_assist.cli import app
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.heads.autojudge import import_head, read_classifier
from hf_lossy_assist.heads.inert_pickle import read, to_array
from tests.models import tiny

TARGET = ModelIdentity("org/large", None, "LlamaForCausalLM", 24, 100)
DRAFT = ModelIdentity("org/small", None, "LlamaForCausalLM", 8, 100)
THRESHOLDS = np.linspace(0.01, 0.9, 26)


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


def write_pickle(content: Any, path: Path, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "head.pkl"


def assert_same_probabilities(head: JudgeHead, pipeline: Pipeline, order: list[int] | None = None) -> None:
    x, _ = data(head.config.width)
    expected = torch.from_numpy(pipeline.predict_proba(x)[:, 1]).double()
    features = torch.from_numpy(x)
    found = head.probability(features if order is None else features[:, order])
    assert torch.allclose(found.double(), expected, atol=1e-5)


# --------------------------------------------------------------------------------------------------------- good files


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("layout", [official, for_vllm, lambda pipeline: pipeline])
def test_probabilities_are_those_of_scikit_learn(layout: Callable, protocol: int, path: Path):
    pipeline = trained(24)
    write_pickle(layout(pipeline), path, protocol)
    head = import_head(path, TARGET, DRAFT, task="gsm8k")
    assert (head.config.models, head.config.positions) == ("target", "draft")
    assert_same_probabilities(head, pipeline)


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)])
@pytest.mark.parametrize("layout", [official, for_vllm, lambda pipeline: pipeline])
def test_joblib(layout: Callable, compress: Any, path: Path):
    pipeline = trained(24)
    joblib.dump(layout(pipeline), path, compress=compress)
    assert_same_probabilities(import_head(path, TARGET, DRAFT, task="gsm8k"), pipeline)


def test_features_of_both_models_change_places(path: Path):
    pipeline = trained(32)
    head = import_head(write_pickle(official(pipeline), path), TARGET, DRAFT, task="gsm8k")
    assert head.config.columns == ["target_draft", "draft_draft"]
    # Theirs is the draft's 8 numbers and then the target's 24; ours the other way round.
    assert_same_probabilities(head, pipeline, order=[*range(8, 32), *range(8)])


@pytest.mark.parametrize(("mean", "std"), [(False, True), (True, False), (False, False)])
def test_standardisation_that_leaves_something_out(mean: bool, std: bool, path: Path):
    pipeline = trained(24, with_mean=mean, with_std=std)
    head = import_head(write_pickle(pipeline, path), TARGET, DRAFT, task="gsm8k")
    assert_same_probabilities(head, pipeline)


def test_one_head_per_fold(path: Path):
    heads = [trained(24), trained(24, with_mean=False)]
    write_pickle([official(pipeline) for pipeline in heads], path)
    for part, pipeline in enumerate(heads):
        assert_same_probabilities(import_head(path, TARGET, DRAFT, task="code", part=part), pipeline)
    for part in (None, 2, -1):
        with pytest.raises(LossyValueError, match="holds 2 heads, one per fold: `fold` has to be between 0 and 1"):
            import_head(path, TARGET, DRAFT, task="code", part=part)


def test_what_the_head_remembers(path: Path, tmp_path: Path):
    head = import_head(write_pickle(official(trained(24)), path), TARGET, DRAFT, task="gsm8k", threshold=0.4)
    head.save_pretrained(tmp_path / "head")
    config = JudgeHead.from_pretrained(tmp_path / "head").config
    assert (config.task, config.threshold, config.target, config.draft) == ("gsm8k", 0.4, TARGET, DRAFT)
    assert config.provenance["imported_from"] == "head.pkl"
    assert config.provenance["published_thresholds"] == pytest.approx(THRESHOLDS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f8", np.float16, np.int64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("write", [write_pickle, joblib.dump])
def test_arrays(dtype: Any, order: str, write: Callable, path: Path):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)
    write({"x": array, "y": array[0], "z": array[:, 1], "one": array[1, 1], "none": array[:0]}, path)
    found = read(path)
    for name, value in {"x": array, "y": array[0], "z": array[:, 1], "one": array[1, 1], "none": array[:0]}.items():
        assert np.array_equal(to_array(name, found[name]), value)


# ---------------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has to hold a dict with 'model' and 'scaler'"),
        (7, "but holds int"),
        ({"weights": np.ones(24)}, r"but holds \['weights'\]"),
        ({"model": StandardScaler(), "scaler": StandardScaler()}, "a LogisticRegression, but holds a StandardScaler"),
        ({"model": 1, "scaler": 2}, "a StandardScaler, but holds a int"),
        (
            official(make_pipeline(StandardScaler(), LogisticRegression())),
            "but one has no `coef_`",
        ),
        (for_vllm(trained(24)) | {"mean": "much"}, "`mean` has to be an array of numbers"),
        (for_vllm(trained(24)) | {"mean": np.array(["a"])}, "`mean` has to be an array of numbers"),
        (for_vllm(trained(24)) | {"mean": np.array([{}])}, "`mean` has to be an array of numbers"),
        (for_vllm(trained(24)) | {"mean": np.ones(3)}, "3, 24, 24 and 1 values"),
        (for_vllm(trained(24)) | {"scale": np.zeros(24)}, "`scale` has to be without zeros"),
        (for_vllm(trained(24)) | {"weights": np.full(24, np.nan)}, "`weight` has to be finite"),
        (for_vllm(trained(23)), r"has 23 coefficients, but .* 24 \(target\) and 8 \(draft\)"),
        (make_pipeline(StandardScaler()), "`steps` of its Pipeline"),
    ],
)
def test_files_that_hold_something_else(content: Any, message: str, path: Path, tmp_path: Path):
    write_pickle(content, path)
    with pytest.raises(LossyValueError, match=message):
        import_head(path, TARGET, DRAFT, task="gsm8k").save_pretrained(tmp_path / "head")


def test_other_classes(path: Path):
    x, y = data(24)
    write_pickle(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.where(y, 2, 1)), path)
    with pytest.raises(LossyValueError, match=r"tell `classes_` \[0, 1\] apart"):
        read_classifier(path)
    write_pickle(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.arange(200) % 3), path)
    with pytest.raises(LossyValueError, match=r"tell `classes_` \[0, 1\] apart"):
        read_classifier(path)


def test_other_estimators_are_refused(path: Path):
    x, y = data(24)
    write_pickle({"model": RandomForestClassifier(2).fit(x, y), "scaler": StandardScaler().fit(x)}, path)
    with pytest.raises(LossyValueError, match=r"it names sklearn\..*nothing of it was run"):
        read_classifier(path)


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


# ------------------------------------------------------------------------------------------------------ hostile files


class Calls:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Callable, *arguments: Any, state: Any = None) -> None:
        self.recipe = (function, arguments, state)

    def __reduce__(self) -> tuple:
        return self.recipe


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


MOST_MEMORY = 200 << 20


def assert_refused_cheaply(path: Path, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LossyValueError, match=message) as caught:
            import_head(path, TARGET, DRAFT, task="gsm8k")
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000


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


HUGE = 10**400
MALFORMED = {
    "thresholds, a number": (lambda head: head.update(thresholds=3), "`thresholds`"),
    "thresholds, huge": (lambda head: head.update(thresholds=[0.5, HUGE]), "`thresholds`"),
    "thresholds, a text": (lambda head: head.update(thresholds="0.5"), "`thresholds`"),
    "thresholds, texts": (lambda head: head.update(thresholds=["0.5"]), "`thresholds`"),
    "mean, huge": (lambda head: head.update(mean=[HUGE] * 24), "`mean`"),
    "mean, infinite": (lambda head: head.update(mean=np.full(24, np.inf)), "finite"),
    "scale, tiny": (lambda head: head.update(scale=np.full(24, 1e-300)), "finite"),
    "weights, large": (lambda head: head.update(weights=np.full(24, 1e300)), "finite"),
    "weights, None": (lambda head: head.update(weights=None), "`weights`"),
    "weights, a text": (lambda head: head.update(weights="w" * 100_000), "`weights`"),
    "weights, a dict": (lambda head: head.update(weights={}), "`weights`"),
    "weights, of numbers and lists": (lambda head: head.update(weights=[1.0, [2.0]]), "`weights`"),
    "bias, a dtype": (lambda head: head.update(bias=np.dtype("f8")), "`bias`"),
    "bias, a class": (lambda head: head.update(bias=StandardScaler), "`bias`"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_fields_are_named(name: str, path: Path):
    change, message = MALFORMED[name]
    head = for_vllm(trained(24))
    change(head)
    write_pickle(head, path)
    assert_refused_cheaply(path, message)


@pytest.mark.parametrize("steps", [None, 3, "ab", [1, 2], [("a",), ("b",)], [("a", 1, 2)] * 2, {"a": 1, "b": 2}])
def test_malformed_pipelines_are_named(steps: Any, path: Path):
    pipeline = trained(24)
    pipeline.__dict__["steps"] = steps
    write_pickle(pipeline, path)
    assert_refused_cheaply(path, "`steps`|Pipeline|StandardScaler")


@pytest.mark.parametrize("change", [{"coef_": 1.0}, {"coef_": None}, {"classes_": None}, {"classes_": HUGE}])
@pytest.mark.parametrize("layout", [official, lambda pipeline: pipeline])
def test_malformed_estimators_are_named(change: dict[str, Any], layout: Callable, path: Path):
    pipeline = trained(24)
    vars(pipeline[1]).update(change)
    write_pickle(layout(pipeline), path)
    assert_refused_cheaply(path, "|".join(change))


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


# -------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    for name, architecture in (("target", "llama"), ("draft", "gpt2")):
        tiny(architecture).save_pretrained(tmp_path / name)
    return ["--model", str(tmp_path / "target"), "--assistant", str(tmp_path / "draft")]


def run(*arguments: str):
    return CliRunner().invoke(app, ["import-autojudge", *arguments], env={"COLUMNS": "200"})


def test_command(models: list[str], path: Path, tmp_path: Path):
    pipeline = trained(64)
    write_pickle(official(pipeline), path)
    out = tmp_path / "head"
    result = run(str(path), "--out", str(out), *models, "--task", "gsm8k", "--threshold", "0.1")
    assert result.exit_code == 0, result.output
    assert "64 weights" in result.output
    assert "Thresholds in the file: 0.01, " in result.output
    head = JudgeHead.from_pretrained(out)
    assert (head.config.task, head.config.threshold, head.config.models) == ("gsm8k", 0.1, "both")
    assert_same_probabilities(head, pipeline, order=[*range(32, 64), *range(32)])
    head.check(tiny("llama"), tiny("gpt2"))
    with pytest.raises(LossyValueError, match="architecture"):
        head.check(tiny("gpt2"), tiny("gpt2"))
    assert json.loads((out / "config.json").read_text())["provenance"]["imported_from"] == "head.pkl"


def test_command_says_what_is_wrong_in_one_line(models: list[str], path: Path, tmp_path: Path):
    write_pickle(Calls(os.system, f"touch {tmp_path / 'marker'}"), path)
    result = run(str(path), "--out", str(tmp_path / "head"), *models)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "nothing of it was run" in result.stderr
    assert not (tmp_path / "head").exists()
    assert not (tmp_path / "marker").exists()
    result = run(str(path), "--out", str(tmp_path / "head"), "--model", str(tmp_path), "--assistant", str(tmp_path))
    assert result.exit_code == 2
    assert "`--model` has to be" in result.stderr
