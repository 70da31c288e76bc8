"""The real pair: from the Hub, and from parts on a package index."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from filelock import FileLock
from huggingface_hub import constants
from transformers import AutoTokenizer

from benchmarks import get_qwen_coder
from benchmarks.get_qwen_coder import Source, join
from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.heads import Head
from hf_lossy_assist.pairs import qwen_coder
from hf_lossy_assist.pairs.qwen_coder import cache_folder
from tests.cli.running import invoke
from tests.hub.server import LoopbackHub
from tests.parity import assert_same_rows
from tests.tiny_pair import TEMPLATE

MODELS = {"target": b"the target's weights", "draft": b"the draft's"}
REMEDY = "make qwen-coder"


def source_of(role: str, parts: int, **changes) -> Source:
    content = MODELS[role]
    known = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return Source(f"real-pair-{role}", "0.1.0", parts, **known | changes)


TARGET = source_of("target", 11)  # two digits: part 10 comes after part 9


def put_wheel(folder: Path, source: Source, part: int, content: bytes) -> None:
    name = f"{source.package}-part{part}".replace("-", "_")
    info = f"{name}-{source.version}.dist-info"
    with ZipFile(folder / source.wheel(part), "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise AssertionError('code of a wheel was run')")
        wheel.writestr(source.member(part), content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {source.version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def put_wheels(folder: Path, source: Source, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    length = -(-len(content) // source.parts)
    for part in range(1, source.parts + 1):
        put_wheel(folder, source, part, content[(part - 1) * length : part * length])
    return folder


@dataclass(frozen=True)
class User:
    """A user with an empty cache and no Hub, for whom models are two and one parts."""

    folder: Path
    converted: list[bytes]

    @property
    def wheels(self) -> Path:
        return cache_folder() / "wheels"

    def make(self, *options: str, code: int = 0) -> str:
        """Run the command, and return what it prints."""
        printed, arguments = io.StringIO(), ["--no-index", "--find-links", str(self.folder / "index"), *options]
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), pytest.raises(SystemExit) as end:
            get_qwen_coder.app(arguments)
        assert end.value.code == code, printed.getvalue()
        return printed.getvalue()


@pytest.fixture
def user(tmp_path, tiny_pair_folder, monkeypatch) -> User:
    found = User(tmp_path, [])

    def convert(file: Path, folder: Path) -> None:
        found.converted.append(file.read_bytes())
        (role,) = (role for role, content in MODELS.items() if content == file.read_bytes())
        shutil.copytree(tiny_pair_folder / role, folder)

    monkeypatch.setattr(get_qwen_coder, "convert", convert)
    monkeypatch.setattr(get_qwen_coder, "find_spec", lambda name: name)
    monkeypatch.setattr(get_qwen_coder, "SOURCES", {"target": source_of("target", 2), "draft": source_of("draft", 1)})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "nothing-downloaded"))
    for role, source in get_qwen_coder.SOURCES.items():
        put_wheels(tmp_path / "index", source, MODELS[role])
    return found


@pytest.fixture
def copied(user, monkeypatch) -> User:
    """A user whose downloads are copies; pip takes a second for each."""

    def download(source: Source, wheels: Path, pip: tuple[str, ...]) -> None:
        shutil.copytree(user.folder / "index", wheels, dirs_exist_ok=True)

    monkeypatch.setattr(get_qwen_coder, "_download", download)
    return user


def test_the_pair_is_downloaded_joined_and_converted_once(user):
    assert not pairs.at_hand("qwen-coder")
    user.make()
    assert pairs.at_hand("qwen-coder")
    assert user.converted == list(MODELS.values())
    assert list(user.wheels.iterdir()) == []
    pair = pairs.load("qwen-coder")
    assert pair.task is None
    assert pair.tokenizer.padding_side == "left"
    assert pair.target.dtype == pair.draft.dtype == torch.bfloat16
    assert not torch.equal(pair.target.lm_head.weight, pair.draft.lm_head.weight)
    assert sorted(pair.heads) == ["judge", "judge-code", "verifier"]
    assert pair.rule_heads == {"judge": pair.heads["judge"], "sprinter": pair.heads["verifier"]}
    assert user.make().count("is there and whole") == 2
    assert len(user.converted) == 2


def test_an_interrupted_download_goes_on_and_wheels_stay_on_request(user):
    source = get_qwen_coder.SOURCES["target"]
    last = user.folder / "index" / source.wheel(2)
    last.rename(user.folder / "later")
    printed = user.make("--keep-wheels", code=2)
    assert re.search(f"pip could not download 'real-pair-target-part2==0.1.0'; .*{REMEDY}", printed)
    (user.folder / "later").rename(last)
    (user.folder / "index" / source.wheel(1)).unlink()  # it is there already
    user.make("--keep-wheels")
    assert user.converted == list(MODELS.values())
    assert len(list(user.wheels.glob("*.whl"))) == 3


def test_one_process_makes_the_pair_and_others_find_it_whole(copied):
    copied.make()
    shutil.move(cache_folder(), copied.folder / "whole")
    with ThreadPoolExecutor() as others:
        with FileLock(cache_folder() / "lock"):
            second = others.submit(copied.make)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
            for role in MODELS:
                shutil.move(copied.folder / "whole" / role, cache_folder())
        assert second.result(timeout=60).count("is there and whole") == 2
    assert len(copied.converted) == 2


def test_a_conversion_that_fails_is_done_again(copied, monkeypatch):
    def half(file: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError("no space left")

    with monkeypatch.context() as changed:
        changed.setattr(get_qwen_coder, "convert", half)
        with pytest.raises(OSError, match="no space"):
            get_qwen_coder.prepare(copied.wheels)
    assert not pairs.at_hand("qwen-coder")
    copied.make()
    assert pairs.load("qwen-coder").draft is not None


def test_without_gguf_nothing_is_downloaded(user, monkeypatch):
    monkeypatch.setattr(get_qwen_coder, "find_spec", lambda name: None)
    assert "pip install gguf" in user.make(code=2)
    assert not user.wheels.exists()


def test_parts_are_joined_in_the_order_of_their_numbers(tmp_path):
    join(TARGET, put_wheels(tmp_path / "wheels", TARGET, MODELS["target"]), tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == MODELS["target"]


def put_bytes(wheels: Path, part: int, content: bytes) -> None:
    (wheels / TARGET.wheel(part)).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda wheels: (wheels / TARGET.wheel(10)).unlink(), "lacks part 10, 'real_pair_target_part10"),
        (lambda wheels: put_bytes(wheels, 3, (wheels / TARGET.wheel(3)).read_bytes()[:100]), "part3-0.1.0-py3"),
        (lambda wheels: put_bytes(wheels, 3, (wheels / TARGET.wheel(4)).read_bytes()), "part3-0.1.0-py3"),
        (lambda wheels: put_wheel(wheels, TARGET, 3, b"more than that"), "bytes of .* have to be 20, but are 32"),
        (lambda wheels: put_wheel(wheels, TARGET, 3, b"??"), "SHA-256 of .*real-pair-target"),
    ],
    ids=["no part", "half a wheel", "another's member", "a longer part", "a changed part"],
)
def test_what_is_wrong_with_the_parts_is_an_error_with_the_remedy(tmp_path, damage, named):
    wheels = put_wheels(tmp_path / "wheels", TARGET, MODELS["target"])
    damage(wheels)
    with pytest.raises(LossyValueError, match=f"{named}.*{REMEDY}"):
        join(TARGET, wheels, tmp_path / "joined")


def test_a_missing_or_damaged_pair_is_an_error_that_says_how_to_make_it(copied):
    with pytest.raises(LossyValueError, match=f"sizes.json is missing or damaged; make it by `{REMEDY}`"):
        pairs.load("qwen-coder")
    copied.make()
    weights = cache_folder() / "draft" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(LossyValueError, match=rf"'model.safetensors' has [\d,]+ of [\d,]+ bytes; make .*`{REMEDY}`"):
        pairs.load("qwen-coder")
    (cache_folder() / "target" / "tokenizer.json").unlink()
    with pytest.raises(LossyValueError, match=rf"'tokenizer.json' has 0 of [\d,]+ bytes; make .*`{REMEDY}`"):
        pairs.load("qwen-coder")
    copied.make()
    assert len(copied.converted) == 4
    assert pairs.load("qwen-coder").draft is not None


def test_a_hub_comes_first(copied, tiny_pair_folder, loopback_hub: LoopbackHub, monkeypatch):
    copied.make()
    with monkeypatch.context() as changed:  # the Hub answers, but does not have the pair
        changed.setattr(constants, "HF_HUB_CACHE", str(copied.folder / "no-cache"))
        assert pairs.load("qwen-coder").target is not None
    for role, hub_id in qwen_coder.HUB_IDS.items():
        files = {path.name: path.read_bytes() for path in (tiny_pair_folder / role).iterdir()}
        loopback_hub.add(hub_id, files | {"model.gguf": b"left alone"})
        shutil.rmtree(cache_folder() / role)
    assert not pairs.at_hand("qwen-coder")
    assert pairs.load("qwen-coder").target.dtype == torch.bfloat16
    assert loopback_hub.downloads.count("model.safetensors") == 2
    assert "model.gguf" not in loopback_hub.downloads
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pairs.at_hand("qwen-coder")
    assert pairs.load("qwen-coder").draft is not None


def test_the_cache_is_the_user_s(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/hf_lossy_assist/qwen-coder")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hf_lossy_assist" / "qwen-coder"


@pytest.mark.parametrize(
    "command",
    [
        "generate --max-new-tokens 3",
        "evaluate --limit 1 --max-new-tokens 3 --modes plain,lossless",
        "mine --task arithmetic --limit 2 --max-new-tokens 4 --out {folder}/mined",
    ],
)
def test_commands_take_the_pair(copied, command):
    copied.make()
    (cache_folder() / "target" / "chat_template.jinja").write_text(TEMPLATE)
    name, *options = command.format(folder=copied.folder).split()
    arguments = [name, "--pair", "qwen-coder", *options]
    result = invoke(arguments, input="Hello", env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output


def test_mining_needs_a_task(copied):
    copied.make()
    arguments = ["mine", "--pair", "qwen-coder", "--out", str(copied.folder / "mined")]
    result = invoke(arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 2
    assert "`--task` has to be given: the pair 'qwen-coder' has none of its own" in result.stderr


def test_the_real_pair_answers_in_its_chat_template(qwen_coder_pair):
    pair = qwen_coder_pair
    draft = AutoTokenizer.from_pretrained(cache_folder() / "draft")
    assert draft.get_vocab() == pair.tokenizer.get_vocab()
    assert pair.target.config.vocab_size == pair.draft.config.vocab_size == 151_936 >= len(pair.tokenizer)
    chat = [{"role": "user", "content": "Write a Python function that adds two numbers. Only code."}]
    inputs = pair.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    options = {"do_sample": False, "max_new_tokens": 14, "return_dict_in_generate": True}
    plain = pair.target.generate(**inputs, output_logits=True, **options)
    lossless, lossy = (
        pair.target.generate(**inputs, assistant_model=pair.draft, lossy_mode=mode, num_assistant_tokens=5, **options)
        for mode in ("lossless", "topk")
    )
    assert_same_rows(lossless.sequences, plain)
    assert lossless.lossy_stats.accepted > 0
    assert lossy.lossy_stats.accepted > 0
    for output in (plain, lossy):
        assert "def " in pair.tokenizer.decode(output.sequences[0, inputs["input_ids"].shape[1] :])


@pytest.mark.parametrize(
    ("name", "task", "least"), [("judge", "gsm8k", 0.6), ("judge-code", "code", 0.6), ("verifier", "prompts", 0.57)]
)
def test_the_bundled_heads_are_of_this_pair(name: str, task: str, least: float):
    head = Head.from_pretrained(pairs.hub_cards() / f"qwen-coder-{name}")
    assert {"target": head.config.target.name, "draft": head.config.draft.name} == qwen_coder.HUB_IDS
    assert head.config.task == task
    assert head.config.metrics["auc"] > least
    assert '"/' not in json.dumps(dict(head.config.provenance)), "paths of the machine that trained it"
