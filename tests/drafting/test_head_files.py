"""Folders of heads that are damaged or made to do harm: our error, before any memory is taken for weights."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_lossy_assist import DFlash, LossyError, LossyValueError
from hf_lossy_assist.generation.drafters.eagle3 import Eagle3
from tests.dflash_heads import random_dflash, write_published
from tests.eagle3_heads import random_head, write_legacy
from tests.nightly import nightly
from tests.tiny_models import tiny

LARGEST = 1 << 24
STRANGE = (
    None, True, 0, 3, -1, 64, LARGEST + 1, 2**63, 10**400, 0.5, float("nan"),
    float("inf"), "", "x", "llama", [], [None], [1], {}, {"a": {"b": 1}}, {"rope_type": "yarn"}, {"rope_type": 3},
    {"rope_type": "default"}, {"rope_type": "linear", "rope_theta": 1e4, "factor": "x"}, {"full_attention": {}},
)  # fmt: skip
NESTED = ("transformer_layer_config", "speculators_config", "eagle_config", "dflash_config")


def written(folder: Path, kind: str) -> Path:
    if kind == "dflash":
        return write_published(random_dflash(), folder)
    head = random_head(target_layers=(0, 1, 2), target_name="org/target")
    if kind == "speculators":
        head.save_pretrained(folder)
        return folder
    return write_legacy(head, folder, specforge=kind == "specforge")


def places(values: Any) -> list[tuple[str, ...]]:
    nested = [(name, key) for name in NESTED for key in values.get(name) or ()]
    return [*((name,) for name in values), *nested]


def changed(values: dict[str, Any], place: tuple[str, ...], value: Any) -> str:
    values = json.loads(json.dumps(values))
    *above, name = place
    (values[above[0]] if above else values)[name] = value
    return json.dumps(values)


@pytest.mark.parametrize("part", nightly(range(3), but=[0]))
@pytest.mark.parametrize("kind", ["speculators", "specforge", "safeailab", "dflash"])
def test_a_value_of_another_type_is_named(tmp_path: Path, kind: str, part: int):
    folder = written(tmp_path, kind)
    values = json.loads((folder / "config.json").read_text())
    outcomes: dict[bool, int] = {True: 0, False: 0}
    for i, place in enumerate(places(values), part):
        for value in STRANGE[i % 3 :: 3]:
            (folder / "config.json").write_text(changed(values, place, value))
            try:
                head = (DFlash if kind == "dflash" else Eagle3).from_pretrained(folder)
                if kind != "safeailab":  # these read the usual three states, of deeper targets
                    head.check(tiny("llama"))
            except LossyError as error:
                said = str(error)  # of transformers it may be words for an argument
                named = place[-1] in said or place[-1].removeprefix("num_").replace("_", " ") in said
                # Another value that is possible gives other weights than the file's, or is another target's.
                other = ("weights than", "trained for", "is no", "drafts the token", "to have layers of")
                emptied = place == ("dflash_config",) and "lacks" in said
                assert named or emptied or any(x in said for x in other), said
                outcomes[False] += 1
            else:
                outcomes[True] += 1
    assert outcomes[False] > 50, outcomes
    assert outcomes[True] > 11, outcomes


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        {"draft_vocab_size": LARGEST},
        {"draft_vocab_size": LARGEST, "vocab_size": LARGEST, "hidden_size": LARGEST, "intermediate_size": LARGEST},
        {"num_hidden_layers": 64, "intermediate_size": LARGEST, "hidden_size": LARGEST},
        {"target_hidden_size": LARGEST},
        {"head_dim": LARGEST},
    ],
    ids=str,
)
def test_sizes_are_compared_before_memory_is_taken(tmp_path: Path, binary: bool, sizes: dict[str, int]):
    """No machine has the memory for these weights, so a head that was made of them would fail otherwise."""
    folder = write_legacy(random_head(), tmp_path, specforge=False, binary=binary)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | sizes))
    with pytest.raises(LossyValueError, match="has other weights than"):
        Eagle3.from_pretrained(folder)


def few_bytes() -> torch.Tensor:
    return torch.zeros(1).expand(1 << 40, 1)


BINARIES = {
    "a list": [torch.zeros(1)],
    "another value": {"fc.weight": 3},
    "a tensor that is not stored whole": {"fc.weight": few_bytes()},
    "a sparse tensor": {"fc.weight": torch.sparse_coo_tensor([[0], [0]], [1.0], (1 << 20, 1 << 20))},
    "names that are no texts": {3: torch.zeros(1)},
}


@pytest.mark.parametrize("content", BINARIES.values(), ids=BINARIES.keys())
def test_a_binary_file_of_other_things_is_refused(tmp_path: Path, content: Any):
    folder = write_legacy(random_head(), tmp_path, specforge=False, binary=True)
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(LossyValueError, match=r"pytorch_model\.bin|other weights"):
        Eagle3.from_pretrained(folder)


def test_a_compressed_binary_file_is_not_unpacked(tmp_path: Path):
    path = write_legacy(random_head(), tmp_path, specforge=False, binary=True) / "pytorch_model.bin"
    with zipfile.ZipFile(path) as stored:
        parts = {name: stored.read(name) for name in stored.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, part in parts.items():
            packed.writestr(name, part)
    with pytest.raises(LossyValueError, match="compressed"):
        Eagle3.from_pretrained(tmp_path)


@pytest.mark.parametrize("token", [-1, 64, -(2**62)])
def test_tokens_that_the_target_lacks_are_refused(token: int):
    head = random_head()
    head.d2t[0] = token
    with pytest.raises(LossyValueError, match=f"drafts the token {token}, but the target has 64"):
        head.check(tiny("llama"))
