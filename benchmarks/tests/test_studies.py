"""Every study: its examples, its help, where README says how it is run, and what it may import."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks
import hf_lossy_assist
from benchmarks.tests.running import run

ROOT = Path(__file__).parents[2]
MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
APPS = [name for name in MODULES if hasattr(importlib.import_module(f"benchmarks.{name}"), "app")]
OUTSIDE = [
    *(path for path in ROOT.glob("benchmarks/**/*.py") if not {"gpu", "tests"} & {*path.parts}),
    *ROOT.glob("examples/**/*.py"),
    *ROOT.glob("examples/**/*.ipynb"),
    *ROOT.glob("hub_cards/**/*.py"),
]
"""What stands outside the wall. ``gpu`` looks inside on purpose, and tests may."""
INSIDE = {
    "get_qwen_coder.py": {"pairs.qwen_coder"},  # it writes what this module reads
    "generate.py": {"integrations.custom_generate"},  # the Hub's entry point
}
"""The modules behind the wall that a file may still import from."""


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str):
    assert doctest.testmod(importlib.import_module(f"benchmarks.{name}")).failed == 0


@pytest.mark.parametrize("name", APPS)
def test_every_command_explains_itself_and_is_documented(name: str, capsys):
    run(importlib.import_module(f"benchmarks.{name}").app, "--help")
    assert "Usage" in capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


def imports(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the modules of the package that a text imports, each with a name from it or None."""
    for node in ast.walk(ast.parse(text)):
        found = [(x.name, None) for x in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            found = [(node.module or "", x.name) for x in node.names]
        for module, name in found:
            if module.partition(".")[0] == "hf_lossy_assist":
                yield module.removeprefix("hf_lossy_assist").removeprefix("."), name


def source(path: Path) -> str:
    if path.suffix == ".py":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = ("".join(cell["source"]).splitlines() for cell in cells if cell["cell_type"] == "code")
    return "\n".join(line for own in lines for line in own if not line.startswith(("!", "%")))


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_public_names_are_imported(path: Path):
    behind = set()
    for module, name in imports(source(path)):
        room = importlib.import_module(f"hf_lossy_assist.{module}".rstrip("."))
        public = getattr(room, "__all__", None) or [x for x in vars(room) if not x.startswith("_")]
        known = module == "" or module in hf_lossy_assist.__all__
        if not known or (name is not None and name not in (*public, "__version__")):
            behind.add(module)
    assert behind == INSIDE.get(path.name, set())


def test_the_wall_is_seen():
    text = "import hf_lossy_assist.core\nfrom hf_lossy_assist.store import folder\nfrom hf_lossy_assist import pairs"
    assert list(imports(text)) == [("core", None), ("store", "folder"), ("", "pairs")]
