"""``lossy-assist chat``, with the lines of a user piped in."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_lossy_assist.cli import app
from tests.tiny_pair import TEMPLATE


@pytest.fixture(scope="module")
def folder(tiny_pair_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The untrained models, with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "pair"
    shutil.copytree(tiny_pair_folder, folder)
    (folder / "target" / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def chat(folder: Path, *lines: str, options: tuple[str, ...] = (), assisted: bool = False):
    models = ["--model", str(folder / "target"), *(["--assistant", str(folder / "draft")] if assisted else [])]
    arguments = ["chat", *models, "--max-new-tokens", "12", *options]
    return CliRunner().invoke(app, arguments, input="\n".join(lines), env={"COLUMNS": "80"})


def answers_in(shown: str) -> list[str]:
    return re.findall(r"^> (?!/).*\n((?:.*\n)*?)\d+ tokens, ", shown, re.MULTILINE)


def test_a_conversation(folder: Path):
    result = chat(
        folder, "Tom has 3 apples.", "And Ada?", "/stats", "/reset", "Tom has 3 apples.", "/quit", "never read"
    )
    assert result.exit_code == 0, result.output
    shown = result.stdout
    assert "Drafting by prompt lookup" in shown
    assert "mode: lossless" in shown
    first, second, third = answers_in(shown)
    assert first == third
    assert len(second) > 12
    assert re.search(r"│ tokens +│ 24 ", shown)
    assert "never read" not in shown
    assert max(map(len, (line for line in shown.splitlines() if line[:1] in "┃│┏"))) <= 80


def test_modes_change_and_lossy_tokens_are_marked(folder: Path):
    lines = ("Tom has 3 apples.", "/mode topk:k=9999", "And Ada?", "/mode", "/mode topk:q=1", "/mode", "And Bob?")
    shown = chat(folder, *lines, assisted=True, options=("--seed", "3")).stdout
    assert "Drafting by a draft model" in shown
    lossless, lossy, after_an_error = answers_in(shown)
    assert "«" not in lossless
    assert "«" in lossy
    assert "«" in after_an_error
    assert shown.count("mode: topk:seed=3:k=9999") == 3
    assert "error: `lossy_config` key 'q' is unknown to the rule 'topk'" in shown


def test_mistakes_are_answered_and_the_conversation_goes_on(folder: Path):
    result = chat(
        folder,
        "/frobnicate",
        "/mode topk k=3",
        "/mode fsd",
        "Tom has 3 apples.",
        "/mode tpok",
        "/help",
        "",
        "/mode lossless",
        "Ada?",
    )
    assert result.exit_code == 0, result.output
    for message in (
        "but is '/frobnicate'",
        "a mode has no spaces",
        "draft's distribution",
        "did you mean 'topk'",
        "/reset",
    ):
        assert message in result.stdout
    assert len(answers_in(result.stdout)) == 1


def test_a_warning_comes_after_the_answer(folder: Path):
    shown = chat(folder, "Tom has 3 apples.", "And Ada?", options=("--mode", "ears")).stdout
    warned, (first, _) = "warning: `lossy_mode` 'ears' changes nothing in greedy decoding", answers_in(shown)
    assert first.splitlines()[-1].startswith(warned)
    assert shown.count(warned) == 1


def test_a_model_without_a_template_is_refused(tiny_pair_folder: Path):
    result = chat(tiny_pair_folder, "hello")
    assert result.exit_code == 2
    assert "has no chat template" in result.stderr
