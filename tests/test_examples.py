"""Every example and every notebook runs."""

from __future__ import annotations

import io
import json
import re
import runpy
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_lossy_assist import disable, pairs
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.cli import main
from tests.nightly import nightly

pytestmark = pytest.mark.usefixtures("disabled")
FOLDER = Path(__file__).parent.parent / "examples"
# The server, which runs until it is stopped, has tests of its own.
EXAMPLES = [x for x in sorted(FOLDER.glob("*.py")) if x.stem != "12_serve"]
SAYS = {
    "01_generate": "kept only by the lossy rule",
    "02_pipeline": "drafted tokens kept",
    "03_train_judge": "judge: ",
    "04_verifier": "before each, the draft committed ",
    "05_own_rule": "only by this rule: [' ",
    "06_batches": "for all 6 answers",
    "07_device_map_and_offload": "min_p: ",
    "08_stock_loop": "drafted tokens kept",
    "09_trees": "judge, trees of depth 4: ",
    "10_chat_model": "tokens per round",
    "11_tensor_parallel": "1 processes, ",
    "13_rollouts": "lossless: True",
    "14_llm_judge": "is a vote of 1 for the first response",
}


@pytest.fixture(autouse=True)
def _commands_in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Others would load torch and transformers anew."""

    run = subprocess.run

    def here(words: Sequence[str], **options: Any) -> Any:
        return main([*words[3:]]) if words[1:3] == ["-m", "hf_lossy_assist"] else run(words, **options)

    monkeypatch.setattr(subprocess, "run", here)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


# What takes longest asks what tests of `mine`, `train` and TRL's trainers ask: they say each day whether it works.
DAILY = [x for x in EXAMPLES if x.stem not in ("03_train_judge", "04_verifier", "13_rollouts")]


@pytest.mark.parametrize("example", nightly(EXAMPLES, but=DAILY), ids=lambda path: path.stem)
def test_example(example: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pairs, "at_hand", lambda name: name == "arithmetic")
    monkeypatch.setattr("sys.stdin", io.StringIO("Ada has 5 pens and buys 4 more. How many pens does Ada have?\n"))
    known = dict(REGISTRY)
    try:
        runpy.run_path(str(example), run_name="__main__")
    finally:
        for rule in REGISTRY.keys() - known.keys():
            del REGISTRY[rule]
    said = capsys.readouterr().out
    assert SAYS[example.stem] in said
    asked = re.findall(r"(\d+) calls of the target for (\d+) tokens;", said)
    assert len(asked) == 2 * (example.stem == "04_verifier")
    assert all(int(times) < int(tokens) for times, tokens in asked), "drafted, however busy the machine is"


NOTEBOOKS = sorted(FOLDER.glob("notebooks/*.ipynb"))


def code_of(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_printed(notebook: Path):
    assert not [cell for cell in code_of(notebook) if cell["outputs"] or cell["execution_count"]]


@pytest.mark.nightly  # each is an example or two in prose
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(notebook: Path):
    names = {"__name__": "__main__"}
    for cell in code_of(notebook):
        exec(compile("".join(cell["source"]), notebook.name, "exec"), names)


def test_the_server_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    """Models, or transformers' extra: without a traceback."""
    example = str(FOLDER / "12_serve.py")
    monkeypatch.setattr("sys.argv", [example])
    with pytest.raises(SystemExit, match="TARGET DRAFT"):
        runpy.run_path(example, run_name="__main__")
    folder = str(pairs.BUNDLED / "draft")
    monkeypatch.setattr("sys.argv", [example, folder, folder])
    draft = pairs.load("arithmetic").draft
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: draft)
    monkeypatch.setattr("transformers.cli.serve.is_serve_available", lambda: False)
    with pytest.raises(SystemExit, match=r"transformers\[serving\]"):
        runpy.run_path(example, run_name="__main__")
    disable()
