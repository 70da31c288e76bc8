"""The `custom_generate` repository: from a folder, from a model's own repository, and by way of the Hub."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers import dynamic_module_utils as dynamic

import hf_lossy_assist
from hf_lossy_assist import LossyValueError, pairs
from tests.forking import ended, fork
from tests.hub.server import TOKEN, LoopbackHub

FOLDER = pairs.hub_cards() / "lossy-assist-generate"
ID = "org/lossy-assist"


@pytest.fixture(autouse=True)
def _not_enabled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    hf_lossy_assist.disable()
    stock = GenerationMixin.generate
    try:
        yield
        assert GenerationMixin.generate is stock
    finally:
        hf_lossy_assist.enable()


@pytest.fixture
def call(pair: pairs.Pair) -> dict:
    inputs = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
    settings = {"do_sample": False, "max_new_tokens": 40, "return_dict_in_generate": True}
    return {**inputs, "assistant_model": pair.draft, **settings}


CUSTOM = {"custom_generate": str(FOLDER), "trust_remote_code": True}
TOPK = {"lossy_mode": "topk", "lossy_config": {"k": 3}}


@pytest.mark.parametrize(
    "fields",
    [TOPK, {"lossy_mode": "ears", "lossy_config": {"beta": 0.3, "seed": 1}, "do_sample": True, "temperature": 0.9}],
    ids=["greedy", "drawn"],
)
def test_same_as_enabled(pair: pairs.Pair, call: dict, fields: dict):
    call |= fields
    got = pair.target.generate(**call, **CUSTOM)
    with hf_lossy_assist.enabled(pair.target):
        expected = pair.target.generate(**call)
        assert torch.equal(pair.target.generate(**call, **CUSTOM).sequences, expected.sequences)
    assert torch.equal(got.sequences, expected.sequences)
    assert got.lossy_stats.trace == expected.lossy_stats.trace
    assert hf_lossy_assist.last_stats(pair.target).trace == expected.lossy_stats.trace


def test_fields_of_the_generation_config(pair: pairs.Pair, call: dict, monkeypatch: pytest.MonkeyPatch):
    config = GenerationConfig(lossy_mode="topk", lossy_config={"k": 2}, num_assistant_tokens=3, max_new_tokens=12)
    del call["max_new_tokens"]
    stats = pair.target.generate(**call, **CUSTOM, generation_config=config).lossy_stats
    assert stats.accepted_by.keys() == {"topk"}
    assert len(stats.trace) == 12
    assert len(stats.accepted_histogram) <= 4
    monkeypatch.setattr(pair.target.generation_config, "lossy_mode", "typical", raising=False)
    stats = pair.target.generate(**call, **CUSTOM, max_new_tokens=8).lossy_stats
    assert stats.accepted_by.keys() == {"typical"}


class Shared(set):
    """Is one, though the states of processors are copied."""

    def __deepcopy__(self, memo: dict) -> Shared:
        return self


def test_streamer_stop_strings_processors_and_criteria_arrive(pair: pairs.Pair, call: dict):
    whole = pair.target.generate(**call, **CUSTOM, lossy_mode="lossless").sequences[0]
    prompt, streamed, seen = call["input_ids"].shape[1], [], Shared()

    def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.add("processor")
        return scores

    def criterion(ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        seen.add("criterion")
        return torch.zeros(len(ids), dtype=torch.bool)

    output = pair.target.generate(
        **call, **CUSTOM, lossy_mode="lossless", tokenizer=pair.tokenizer, logits_processor=[processor],
        stop_strings=[stop := pair.tokenizer.decode(whole[prompt + 6 : prompt + 9])], stopping_criteria=[criterion],
        streamer=SimpleNamespace(put=lambda ids: streamed.extend(ids.flatten().tolist()), end=lambda: seen.add("end")),
    )  # fmt: skip
    assert seen == {"processor", "criterion", "end"}
    assert streamed == output.sequences[0].tolist()
    assert len(streamed) < len(whole)
    assert stop in pair.tokenizer.decode(streamed[prompt:])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "`lossy_mode` has to be given"),
        ({"lossy_config": {"k": 2}}, "`lossy_mode` has to be given"),
        ({"lossy_mode": "topk", "num_beams": 3}, "`num_beams`"),
    ],
)
def test_bad_settings(pair: pairs.Pair, call: dict, fields: dict, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pair.target, "forward", None)  # not even one pass
    with pytest.raises(LossyValueError) as error:
        pair.target.generate(**call | CUSTOM | fields)
    assert message in str(error.value)


def test_none_is_plain_generate(pair: pairs.Pair, call: dict):
    call["assistant_model"] = None
    got = pair.target.generate(**call, **CUSTOM, lossy_mode=None)
    assert torch.equal(got.sequences, pair.target.generate(**call).sequences)
    assert type(got).__name__ == "GenerateDecoderOnlyOutput"


def test_an_exception_leaves_nothing_behind(pair: pairs.Pair, call: dict):
    def broken(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pair.target.generate(**call, **CUSTOM, lossy_mode="topk", logits_processor=[broken])
    # The fixture sees that generate() is stock's again.
    assert pair.target.generate(**call, **CUSTOM, lossy_mode="topk").lossy_stats.rounds > 0


@pytest.fixture
def own(pair: pairs.Pair, tmp_path: Path) -> PreTrainedModel:
    """A model whose own repository decodes so."""
    folder = tmp_path / "model"
    pair.target.save_pretrained(folder)
    shutil.copytree(FOLDER / "custom_generate", folder / "custom_generate")
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def test_in_a_models_own_repository(pair: pairs.Pair, call: dict, own: PreTrainedModel):
    expected = pair.target.generate(**call, **CUSTOM, **TOPK)
    ids = call.pop("input_ids")
    got = own.generate(ids, **call, **TOPK)
    assert torch.equal(got.sequences, expected.sequences)
    assert got.lossy_stats.trace == expected.lossy_stats.trace
    with pytest.raises(LossyValueError, match="`lossy_mode` has to be given"):
        own.generate(ids, **call)


def test_such_a_model_is_a_draft_too(pair: pairs.Pair, call: dict, own: PreTrainedModel):
    call["assistant_model"] = own
    stock = pair.target.generate(**call).sequences
    assert torch.equal(stock, pair.target.generate(**call, **CUSTOM, lossy_mode="lossless").sequences)


def test_published_and_used_from_the_hub(pair: pairs.Pair, call: dict, signed_in: LoopbackHub):
    HfApi().create_repo(ID, private=True)
    HfApi().upload_folder(repo_id=ID, folder_path=FOLDER)  # as `hf upload` does
    repository = signed_in.repositories[ID]
    assert repository.private
    files = repository.commits[commit := repository.branches["main"]]
    assert sorted(files) == ["README.md", "custom_generate/generate.py", "custom_generate/requirements.txt"]

    custom = {"custom_generate": ID, "trust_remote_code": True, "token": TOKEN}
    expected = pair.target.generate(**call, **CUSTOM, **TOPK)
    for more in ({}, {"revision": commit}, {"local_files_only": True}):
        got = pair.target.generate(**call, **custom, **more, **TOPK)
        assert torch.equal(got.sequences, expected.sequences)
        assert got.lossy_stats.rounds == expected.lossy_stats.rounds


def test_card_and_requirements():
    card = huggingface_hub.ModelCard.load(FOLDER / "README.md")
    assert card.data.library_name == "transformers"
    assert "custom_generate" in card.data.tags
    dynamic.check_python_requirements(str(FOLDER), requirements_file="custom_generate/requirements.txt")


def without_the_package(target: str, draft: str) -> None:
    """A program that knows transformers only."""
    hf_lossy_assist.disable()
    for name in [name for name in sys.modules if name.partition(".")[0] == "hf_lossy_assist"]:
        del sys.modules[name]
    words = AutoTokenizer.from_pretrained(target)("Tom has 3 apples.", return_tensors="pt")
    target, draft = (AutoModelForCausalLM.from_pretrained(folder) for folder in (target, draft))
    output = target.generate(
        **words, assistant_model=draft, custom_generate=str(FOLDER), trust_remote_code=True, lossy_mode="ears",
        do_sample=True, max_new_tokens=10, return_dict_in_generate=True,
    )  # fmt: skip
    sys.stdout.write(f"{type(output).__name__}, {output.lossy_stats.rounds} rounds")


def test_without_an_import(pair: pairs.Pair, tmp_path: Path):
    folders = [model.name_or_path for model in (pair.target, pair.draft)]
    assert ended(fork(without_the_package, *folders, out=tmp_path / "printed")) == 0
    assert re.fullmatch(r"GenerateLossyOutput, [1-9]\d* rounds", (tmp_path / "printed").read_text())
