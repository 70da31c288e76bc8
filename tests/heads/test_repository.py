"""Folders of heads that are damaged or made to do harm: our error, which names the file, and nothing else."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save, save_file
from transformers import PreTrainedModel

from hf_lossy_assist import JudgeHead, LossyValueError
from hf_lossy_assist.heads import Head, load_head
from tests.nightly import spread

MOST_MEMORY = 100 << 20


@pytest.fixture
def saved(judge: JudgeHead, tmp_path: Path) -> Path:
    judge.save_pretrained(tmp_path / "judge")
    config = tmp_path / "judge" / "config.json"
    # Without the digest, which would notice first.
    config.write_text(json.dumps({k: v for k, v in json.loads(config.read_text()).items() if k != "weights_sha256"}))
    return tmp_path / "judge"


def change(folder: Path, name: str, value: str) -> None:
    """Write JSON ``value`` in the place of one of a configuration's values; ``a.b`` is the one of ``b`` in ``a``."""
    values = json.loads((folder / "config.json").read_text())
    *path, last = name.split(".")
    place = values
    for key in path:
        place = place[key]
    place[last] = "HERE"
    (folder / "config.json").write_text(json.dumps(values).replace('"HERE"', value))


def assert_refused(folder: Path, file: str, message: str = r"\w") -> None:
    for load in (JudgeHead.from_pretrained, Head.from_pretrained, lambda source: load_head(JudgeHead, source)):
        tracemalloc.start()
        try:
            with pytest.raises(LossyValueError, match=message) as caught:
                load(folder)
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
        finally:
            tracemalloc.stop()
        assert str(folder / file) in str(caught.value)
        assert len(str(caught.value)) < 5000


FIELDS = (
    "type", "library_name", "format_version", "weights_sha256", "target", "target.name", "target.revision",
    "target.architecture", "target.hidden_size", "target.vocab_size", "target.fingerprint", "draft", "task",
    "threshold", "thresholds", "metrics", "provenance", "models", "positions",
)  # fmt: skip
WRONG = {
    "an object": '{"a": [1]}',
    "a list": "[[1], {}]",
    "a number": "0.5",
    "a huge number": "1" + "0" * 400,
    "a huge negative number": "-1" + "0" * 400,
    "a number of many digits": "1" * 10_000,
    "infinite": "Infinity",
    "NaN": "NaN",
    "true": "true",
    "null": "null",
    "deep": "[" * 900 + "]" * 900,
    "deeper": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "a surrogate": '"\\ud800"',
    "long": '"' + "a" * 100_000 + '"',
}
# Values that some fields may have.
FINE = {
    ("null", "weights_sha256"), ("null", "target.revision"), ("long", "task"), ("long", "target.name"),
    ("long", "target.architecture"), ("long", "target.revision"), ("a number", "threshold"),
    ("an object", "provenance"),
}  # fmt: skip


@spread(wrong=WRONG, field=FIELDS)
def test_values_of_another_type(saved: Path, field: str, wrong: str):
    change(saved, field, WRONG[wrong])
    if (wrong, field) in FINE:
        JudgeHead.from_pretrained(saved)
    elif field == "weights_sha256":
        assert_refused(saved, "", "model.safetensors|as JSON")
    else:
        name = field.rpartition(".")[2]
        other = "not the configuration of a head|it is that of a|as JSON"
        assert_refused(saved, "config.json", f"`{name}`|{other}")


@pytest.mark.parametrize("field", ["threshold", "recall", "skipped"])
@pytest.mark.parametrize("wrong", ["a list", "a huge number", "NaN", "null", "deep", "true", "long"])
def test_rows_of_the_table(saved: Path, field: str, wrong: str):
    row = json.dumps({"threshold": 0.5, "recall": 0.5, "skipped": 0.5} | {field: "THERE"})
    change(saved, "thresholds", f"[{row}]".replace('"THERE"', WRONG[wrong]))
    assert_refused(saved, "config.json")


NO_NORMS = ("-1.0", "-1e300", "true", "Infinity", "NaN", "1" + "0" * 400)


@pytest.mark.parametrize("norm", [*NO_NORMS, "1e300", "3.5e38", "1" + "0" * 100, "0.0", "1e-30"])
def test_a_fingerprint_that_no_model_has_is_refused_or_matches_none(saved: Path, target: PreTrainedModel, norm: str):
    change(saved, "target.fingerprint", f"[{', '.join([norm] * 8)}]")
    if norm in NO_NORMS:
        assert_refused(saved, "config.json", "`fingerprint`")
    else:
        differences = JudgeHead.from_pretrained(saved).config.target.differences(target)
        assert differences == ["the weights of the LM head differ"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_large_files_are_not_read(saved: Path, name: str):
    with (saved / name).open("r+b") as file:
        file.truncate(1 << 33)
    assert_refused(saved, name, "8,589,934,592 bytes")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("folder", [False, True])
def test_missing_files_and_folders_in_their_place(saved: Path, name: str, folder: bool):
    (saved / name).unlink()
    if folder:
        (saved / name).mkdir()
    assert_refused(saved, "", "has no " + name.replace(".", r"\."))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe{\x00}\x00", "as JSON"), (b"{", "as JSON"), (b"[]", "it is not the configuration of a head")],
)
def test_configurations_that_are_none(saved: Path, content: bytes, message: str):
    (saved / "config.json").write_bytes(content)
    assert_refused(saved, "config.json", message)


def tensors(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"weight": torch.zeros(32), "bias": torch.zeros(())} | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tensors(weight=torch.full((32,), torch.nan)), "`weight` .*not finite"),
        (tensors(bias=torch.tensor(torch.inf)), "`bias` .*not finite"),
        (tensors(weight=torch.zeros(16)), r"has to hold .*\(32,\).* but holds .*\(16,\)"),
        (tensors(weight=torch.zeros(1, 32)), r"but holds .*\(1, 32\)"),
        (tensors(more=torch.zeros(1)), "has to hold .* but holds .*'more'"),
        ({"weight": torch.zeros(32)}, "has to hold .*'bias'"),
        (tensors(weight=torch.full((32,), 1e300, dtype=torch.float64)), "`weight` .*not finite in float32"),
        (tensors(bias=torch.tensor(-1e39, dtype=torch.float64)), "`bias` .*not finite in float32"),
        (tensors(weight=torch.zeros(32, dtype=torch.float8_e4m3fn)), "`weight` .*float8_e4m3fn"),
        (tensors(weight=torch.zeros(32, dtype=torch.int64)), "`weight` .*floating-point.*int64"),
        (tensors(weight=torch.zeros(32, dtype=torch.complex64)), "`weight` .*complex64"),
        (tensors(weight=torch.zeros(32, dtype=torch.bool)), "`weight` .*bool"),
    ],
)
def test_weights_that_do_not_fit(saved: Path, content: dict[str, torch.Tensor], message: str):
    save_file(content, saved / "model.safetensors")
    assert_refused(saved, "model.safetensors", message)


def header(**changes: Any) -> bytes:
    values = {
        "weight": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]},
        "bias": {"dtype": "F32", "shape": [], "data_offsets": [128, 132]},
    }
    text = json.dumps(values | changes).encode()
    return len(text).to_bytes(8, "little") + text + bytes(132)


@pytest.mark.parametrize(
    "content",
    [
        header(weight={"dtype": "F4", "shape": [256], "data_offsets": [0, 128]}),
        header(weight={"dtype": "F8_E8M0", "shape": [128], "data_offsets": [0, 128]}),
        header(weight={"dtype": "F6_E2M3", "shape": [32], "data_offsets": [0, 24]}),
        header(weight={"dtype": "F99", "shape": [32], "data_offsets": [0, 128]}),
        header(weight={"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 128]}),
        header(weight={"dtype": "F32", "shape": [32], "data_offsets": [0, 1 << 60]}),
        header(weight=3),
        *(header()[:length] for length in (0, 4, 60, -4)),
        b"\xff" * 8,
        (1 << 62).to_bytes(8, "little") + b"{}",
        save({"weight": torch.zeros(32)}, {"k": "v" * 100_000}),
    ],
)
def test_weights_that_are_no_weights(saved: Path, content: bytes):
    (saved / "model.safetensors").write_bytes(content)
    assert_refused(saved, "model.safetensors")


REFERENCES = {
    "nobody's home": "~nosuchuser/x",
    "nobody's home alone": "~nosuchuser",
    "over-long": "a" * 5000,
    "over-long parts": "a/" + "b" * 5000,
    "over-long id": f"org/{'b' * 200}",
    "a surrogate": "\ud800",
    "a surrogate in an id": "org/na\ud800me",
    "a surrogate in a revision": "org/name@\ud800",
    "a null": "org/na\0me",
    "a null in a revision": "org/name@a\0b",
    "nothing": "",
    "blank": " ",
    "a dotted id": "../..@x",
    "two dots": "org/na..me",
    "a number": 3,
    "bytes": b"org/name",
    "none": None,
    "a list": ["org/name"],
    "no folder": "./nowhere",
    "no absolute folder": "/no/such/folder",
    "three parts": "a/b/c",
}


@pytest.mark.parametrize("name", REFERENCES)
def test_odd_references(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    reference = REFERENCES[name]
    for load in (lambda source: load_head(JudgeHead, source), JudgeHead.from_pretrained):
        with pytest.raises(LossyValueError) as caught:
            load(reference)
        assert repr(reference).split("@")[0].rstrip("'")[:40] in str(caught.value)
