"""``lossy-assist publish``, against the loopback Hub."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from huggingface_hub import RepoCard
from typer.testing import CliRunner

from hf_lossy_assist import Eagle3, JudgeHead
from hf_lossy_assist.cli import app
from hf_lossy_assist.cli import publish as command
from hf_lossy_assist.heads.repository import PLACEHOLDER_ID, Publication
from tests.eagle3_heads import random_head
from tests.hub.server import LoopbackHub
from tests.tiny_pair import tiny_pair_folder  # noqa: F401

ID = "org/judge"
PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["publish", *arguments], env={"COLUMNS": "120"})


@pytest.fixture
def folder(judge: JudgeHead, tmp_path: Path) -> Path:
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "roc.png").write_bytes(PNG)
    judge.save_pretrained(folder)
    (folder / "notes.txt").write_text("not for the Hub")
    (folder / ".env").write_text("TOKEN=hf_secret")
    return folder


def stored(hub: LoopbackHub, branch: str = "main") -> dict[str, bytes]:
    repository = hub.repositories[ID]
    return {path: file.content for path, file in repository.commits[repository.branches[branch]].items()}


def test_publishes_exactly_what_belongs_to_the_head(folder: Path, judge: JudgeHead, signed_in: LoopbackHub):
    result = run(str(folder), ID)
    assert result.exit_code == 0, result.output
    assert f"Published: {signed_in.endpoint}/{ID}/commit/{signed_in.repositories[ID].branches['main']}" in result.output
    files = stored(signed_in)
    assert sorted(files) == ["README.md", "config.json", "model.safetensors", "roc.png"]
    for name in ("config.json", "model.safetensors", "roc.png"):
        assert files[name] == (folder / name).read_bytes()
    assert f'lossy_head="{ID}"' in files["README.md"].decode()
    assert "![ROC curve](roc.png)" in files["README.md"].decode()
    assert not signed_in.repositories[ID].private
    assert torch.equal(JudgeHead.from_pretrained(ID).weight, judge.weight)


def test_private_and_revision(folder: Path, signed_in: LoopbackHub):
    result = run(str(folder), ID, "--private", "--revision", "v1")
    assert result.exit_code == 0, result.output
    assert signed_in.repositories[ID].private
    assert "config.json" in stored(signed_in, "v1")
    assert stored(signed_in, "main") == {}
    # Once more: repository and branch are there already.
    assert run(str(folder), ID, "--private", "--revision", "v1").exit_code == 0


def test_dry_run_lists_sizes_and_asks_nobody(folder: Path, loopback_hub: LoopbackHub):
    result = run(str(folder), ID, "--dry-run")
    assert result.exit_code == 0, result.output
    listed = dict(re.findall(r"(\S+\.\w+) +│ +([\d,]+)", result.output))
    assert {name: int(size.replace(",", "")) for name, size in listed.items()} == {
        name: (folder / name).stat().st_size for name in ("config.json", "model.safetensors", "README.md", "roc.png")
    }
    assert "Nothing was sent" in result.output
    assert not loopback_hub.requests


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), [ID], "not the file that config.json was"),
        (lambda folder: (folder / "README.md").unlink(), [ID], "lacks ['README.md']"),
        (lambda folder: (folder / "config.json").unlink(), [ID], "has no config.json"),
        (lambda folder: shutil.rmtree(folder), [ID], "is not a folder"),
        (lambda folder: None, ["no such/id/at all"], "can't use 'no such/id/at all'"),
        (lambda folder: None, [ID, "--out", "."], "`--out` has to be a new or an empty folder"),
    ],
    ids=["damaged", "no card", "no configuration", "no folder", "no id", "not empty"],
)
def test_what_can_not_be_published(
    change: Callable[[Path], object], arguments: list[str], message: str, folder: Path, signed_in: LoopbackHub
):
    change(folder)
    result = run(str(folder), *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not signed_in.repositories


def test_without_a_token_nothing_is_published(folder: Path, loopback_hub: LoopbackHub):
    result = run(str(folder), ID)
    assert (result.exit_code, "hf auth login" in result.stderr) == (2, True)
    assert not loopback_hub.repositories


def test_eagle3_heads_are_published(tmp_path: Path, signed_in: LoopbackHub):
    head = random_head()
    head.save_pretrained(tmp_path / "draft")
    (tmp_path / "draft" / "training").mkdir()
    (tmp_path / "draft" / "training" / "checkpoint.safetensors").write_bytes(b"not for the Hub")
    result = run(str(tmp_path / "draft"), ID)
    assert result.exit_code == 0, result.output
    assert sorted(stored(signed_in)) == ["README.md", "config.json", "model.safetensors"]
    loaded = Eagle3.from_pretrained(ID)
    assert torch.equal(loaded.fc.weight, head.fc.weight)


def test_assistants_are_published_with_their_tokenizer(
    tmp_path: Path,
    tiny_pair_folder: Path,  # noqa: F811
    signed_in: LoopbackHub,
):
    folder = shutil.copytree(tiny_pair_folder / "draft", tmp_path / "draft")
    (folder / "README.md").write_text("# An assistant\n")
    (folder / "notes.txt").write_text("not for the Hub")
    result = run(str(folder), ID)
    assert result.exit_code == 0, result.output
    files = stored(signed_in)
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert "notes.txt" not in files
    (folder / "model.safetensors").write_bytes(b"")
    result = run(str(folder), ID)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_things_that_are_no_folders_can_be_published_by_name(
    tmp_path: Path, signed_in: LoopbackHub, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "generate.py").write_text("")
    thing = Publication("a thing", {"custom_generate/generate.py": tmp_path / "generate.py"})
    monkeypatch.setattr(command, "NAMED", {"thing": thing})
    assert run("thing", ID).exit_code == 0
    assert sorted(stored(signed_in)) == ["custom_generate/generate.py"]


def test_the_space_is_published_as_one(signed_in: LoopbackHub):
    result = run("space", ID)
    assert result.exit_code == 0, result.output
    assert signed_in.repositories[ID].sdk == "gradio"
    files = stored(signed_in)
    assert sorted(files) == ["README.md", "app.py", "requirements.txt"]
    card = RepoCard(files["README.md"].decode())
    assert (card.data.sdk, card.data.app_file) == ("gradio", "app.py")


@pytest.mark.parametrize("what", ["head", "draft", "certificate", "custom-generate", "space"])
def test_what_is_written_to_a_folder_is_what_would_be_sent(
    what: str, folder: Path, tmp_path: Path, signed_in: LoopbackHub, monkeypatch: pytest.MonkeyPatch
):
    random_head().save_pretrained(tmp_path / "draft")
    (tmp_path / "README.md").write_text(f"# {PLACEHOLDER_ID}")
    certificate = Publication("certificate", {"README.md": tmp_path / "README.md"})
    monkeypatch.setattr(command, "certificate_publication", lambda folder: certificate)
    sources = {"head": [str(folder)], "draft": [str(tmp_path / "draft")], "certificate": ["certificate", "here"]}
    source = sources.get(what, [what])
    assert run(*source, ID, "--out", str(tmp_path / "out" / "here")).exit_code == 0
    assert not signed_in.requests
    assert run(*source, ID).exit_code == 0
    out = tmp_path / "out" / "here"
    written = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert written == stored(signed_in)
    assert PLACEHOLDER_ID.encode() not in b"".join(written.values())
