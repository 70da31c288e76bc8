"""Heads on the Hub, through the real client and a server on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard, constants

from hf_lossy_assist import JudgeHead, LossyValueError
from hf_lossy_assist.heads import Head, load_head
from hf_lossy_assist.heads.head import _load
from tests.hub.server import TOKEN, LoopbackHub

ID = "org/judge"


@pytest.fixture(autouse=True)
def _nothing_loaded_yet():
    _load.cache_clear()


def files_of(head: Head, folder: Path) -> dict[str, bytes]:
    head.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def published(judge: JudgeHead, loopback_hub: LoopbackHub, tmp_path: Path) -> LoopbackHub:
    """The loopback Hub with the judge in it, for anybody to read."""
    loopback_hub.add(ID, files_of(judge, tmp_path / "saved"))
    return loopback_hub


@pytest.mark.parametrize(("kind", "at_once"), [("judge", False), ("verifier", True)])
def test_round_trip(kind: str, at_once: bool, signed_in: LoopbackHub, tmp_path: Path, request: pytest.FixtureRequest):
    head = request.getfixturevalue(kind)
    if at_once:
        commit = head.save_pretrained(tmp_path / "head", repo_id=ID, push_to_hub=True)
    else:
        commit = head.push_to_hub(ID, private=True)
    assert signed_in.repositories[ID].private is not at_once
    pushed = signed_in.repositories[ID].commits[commit.oid]
    assert {*pushed} == {"README.md", "config.json", "model.safetensors"}
    loaded = Head.from_pretrained(ID)
    assert type(loaded) is type(head)
    assert loaded.config == head.config
    assert torch.equal(loaded.weight, head.weight)
    assert torch.equal(loaded.bias, head.bias)
    assert ModelCard.load(ID).data.library_name == "hf_lossy_assist"


def test_revision(judge: JudgeHead, signed_in: LoopbackHub):
    judge.push_to_hub(ID)
    other = JudgeHead(judge.config, -judge.weight, judge.bias)
    huggingface_hub.HfApi().create_branch(ID, branch="negative")
    other.push_to_hub(ID, branch="negative")
    assert torch.equal(JudgeHead.from_pretrained(ID).weight, judge.weight)
    assert torch.equal(JudgeHead.from_pretrained(ID, revision="negative").weight, -judge.weight)
    assert torch.equal(load_head(JudgeHead, f"{ID}@negative").weight, -judge.weight)
    commit = signed_in.repositories[ID].branches["main"]
    assert torch.equal(load_head(JudgeHead, f"{ID}@{commit}").weight, judge.weight)


def test_the_cache_on_disk_is_used_and_enough_offline(published: LoopbackHub, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LossyValueError, match=r"can't use 'org/judge': .*cached"):
        JudgeHead.from_pretrained(ID, local_files_only=True)
    head = load_head(JudgeHead, ID)
    JudgeHead.from_pretrained(ID)
    assert sorted(published.downloads) == ["config.json", "model.safetensors"]
    asked = len(published.requests)
    assert load_head(JudgeHead, ID) is head
    JudgeHead.from_pretrained(ID, local_files_only=True)
    JudgeHead.from_pretrained(ID, revision=published.repositories[ID].branches["main"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    JudgeHead.from_pretrained(ID)
    assert len(published.requests) == asked


def test_one_commit_whatever_is_pushed_meanwhile(judge: JudgeHead, published: LoopbackHub, tmp_path: Path):
    JudgeHead.from_pretrained(ID)
    newer = JudgeHead(judge.config, 2 * judge.weight, judge.bias)
    published.add(ID, files_of(newer, tmp_path / "newer"))
    assert torch.equal(JudgeHead.from_pretrained(ID).weight, 2 * judge.weight)
    assert torch.equal(JudgeHead.from_pretrained(ID, local_files_only=True).weight, 2 * judge.weight)


@pytest.mark.parametrize(
    ("source", "revision", "message"),
    [
        ("org/nothing", None, "can't use 'org/nothing': .*Repository Not Found"),
        (ID, "v9", "'org/judge' at revision 'v9': .*Revision Not Found"),
        ("org/name--", None, "Repo id must|neither a folder nor an id"),
    ],
)
def test_sources_that_are_none(published: LoopbackHub, source: str, revision: str | None, message: str):
    with pytest.raises(LossyValueError, match=message):
        JudgeHead.from_pretrained(source, revision=revision)
    assert bool(published.requests) == ("neither" not in message)
    with pytest.raises(LossyValueError, match=message):
        load_head(JudgeHead, source if revision is None else f"{source}@{revision}")


@pytest.mark.parametrize(
    ("access", "wrong_token", "message"),
    [("private", "hf_wrong", "make sure you are authenticated"), ("gated", None, "gated repo")],
)
def test_repositories_that_want_a_token(
    judge: JudgeHead, loopback_hub: LoopbackHub, tmp_path: Path, access: str, wrong_token: str | None, message: str
):
    loopback_hub.add(ID, files_of(judge, tmp_path / "saved"), **{access: True})
    with pytest.raises(LossyValueError, match=message):
        JudgeHead.from_pretrained(ID, token=wrong_token)
    assert torch.equal(JudgeHead.from_pretrained(ID, token=TOKEN).weight, judge.weight)


def test_downloads_that_break_off_and_a_hub_out_of_reach(published: LoopbackHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client waits between its attempts
    published.repositories[ID].served["model.safetensors"] = lambda content: content[: len(content) // 2]
    with pytest.raises(LossyValueError, match=r"can't use 'org/judge'"):
        JudgeHead.from_pretrained(ID)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    huggingface_hub.close_session()
    with pytest.raises(LossyValueError, match=r"can't use 'org/judge': .*Connection refused"):
        JudgeHead.from_pretrained(ID)


def test_weights_changed_on_the_server(published: LoopbackHub):
    published.repositories[ID].served["model.safetensors"] = lambda content: content[:-8] + bytes(8)
    with pytest.raises(LossyValueError, match=r"is not the file that config\.json was saved with.*force_download=True"):
        JudgeHead.from_pretrained(ID)
    published.repositories[ID].served.clear()
    with pytest.raises(LossyValueError, match="is not the file"):
        JudgeHead.from_pretrained(ID)  # the cache has it now
    assert JudgeHead.from_pretrained(ID, force_download=True).weight.isfinite().all()


def test_repository_of_something_else(loopback_hub: LoopbackHub):
    loopback_hub.add("org/empty", {".gitattributes": b""})
    with pytest.raises(LossyValueError, match=r"has no config\.json"):
        JudgeHead.from_pretrained("org/empty")
    loopback_hub.add("org/llama", {"config.json": json.dumps({"model_type": "llama"}).encode()})
    with pytest.raises(LossyValueError, match=r"not the configuration of a head.*'llama'"):
        JudgeHead.from_pretrained("org/llama")


def test_only_configuration_and_weights_are_fetched(published: LoopbackHub, tmp_path: Path):
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    hostile = {"head.py": b"raise SystemExit", "pytorch_model.bin": b"cos\nsystem\n(S'false'\ntR."}
    published.add(ID, files | hostile)
    JudgeHead.from_pretrained(ID)
    del files["model.safetensors"]
    published.add("org/pickled", files | hostile)
    with pytest.raises(LossyValueError, match=r"has no model\.safetensors"):
        JudgeHead.from_pretrained("org/pickled")
    assert {*published.downloads} == {"config.json", "model.safetensors"}
