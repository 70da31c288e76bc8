"""Every example of the site and of README runs, every command is understood, and every page is found."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
import shlex
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import tomllib
import torch
import typer
from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser
from typer.testing import CliRunner

from docs.generator import pages, plots, roles
from docs.generator.formulas import FORMULAS
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.cli import app

PAGES = [path for path, _ in pages.sources() if path.suffix == ".md"]
QUICK = ("lossy-assist", "generate", "--pair")
"""What commands that are run begin with; of the others, names and options are checked."""


def check(words: list[str]) -> None:
    """Run a command, or see that it is one, with options that it has."""
    if tuple(words[:3]) == QUICK:
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, result.output
    elif words[0] == "lossy-assist":
        parse(app, words[1:])
    elif words[:2] == ["python", "-m"]:
        parse(importlib.import_module(words[2]).app, words[3:])
    elif words[0] == "make":
        assert f"\n{words[1]}:" in (pages.ROOT / "Makefile").read_text(encoding="utf-8")
    else:
        assert words[:2] == ["pip", "install"], f"an unknown command: {words}"


def parse(command: typer.Typer, words: list[str]) -> None:
    """Read the words as the command does, down to the innermost subcommand."""
    found = typer.main.get_command(command)
    context = found.make_context("", list(words))
    while hasattr(found, "resolve_command"):
        name, found, rest = found.resolve_command(context, [*context._protected_args, *context.args])
        context = found.make_context(name, rest, parent=context)
        found = context.command


def commands(example: Example) -> None:
    """Check the commands of a block, one a line."""
    for line in example.parsed.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            check(words[: words.index("&&")] if "&&" in words else words)


def inline(document: Document) -> Iterator[Region]:
    """Find the commands in the text that are whole: with options, and nothing left out."""
    command = r"(?<!`)`((?:lossy-assist|python -m benchmarks\.)[^`…]+ --(?!help)[^`…]+)`"
    for match in re.finditer(command, document.text):
        yield Region(match.start(), match.end(), shlex.split(match[1]), lambda example: check(example.parsed))


SYBIL = Sybil([PythonCodeBlockParser(), CodeBlockParser("bash", commands), inline, SkipParser()])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    with mock.patch.dict(REGISTRY):
        for example in SYBIL.parse(page).examples():
            with contextlib.suppress(unittest.SkipTest):
                example.evaluate()


def test_every_page_is_in_the_navigation_and_there():
    def linked(entries: list[dict]) -> Iterator[str]:
        for entry in entries:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else linked(value)

    config = tomllib.loads((pages.ROOT / "zensical.toml").read_text(encoding="utf-8"))
    written = [place for path, place in pages.sources() if path.suffix == ".md"]
    written += [f"api/{name}.md" for name, _ in pages.reference()]
    assert sorted(linked(config["project"]["nav"])) == sorted(written)
    assert config["project"]["repo_url"] == pages.SOURCE


def test_every_rule_has_its_formula_and_picture(tmp_path: Path):
    assert list(FORMULAS) == list(REGISTRY)
    for name in ("ears", "dropmatch"):
        plots.draw(name, tmp_path / "plot.svg")
        assert "<svg" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


def test_a_link_to_nothing_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"README.md has a link to nothing\.md"):
        pages.relinked("[there](nothing.md)", pages.ROOT / "README.md", Path("index.md"))


@pytest.mark.parametrize("module", [pages, roles])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0
