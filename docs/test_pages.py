"""Every example of the site and of README runs, every command is understood, and every page is found."""

from __future__ import annotations

import contextlib
import doctest
import gc
import importlib
import io
import re
import shlex
import tomllib
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

import hf_lossy_assist
from docs.generator import pages, plots, roles
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.cli import app
from tests import test_speech as speech
from tests.cli.running import invoke

PAGES = [path for path, _ in pages.sources() if path.suffix == ".md"]
QUICK = ("lossy-assist", "generate", "--pair")
"""What commands that are run begin with; of the others, names and options are checked."""


def brought(page: Path) -> dict[str, Any]:
    """Return the names that a page has from an example that needs a download."""
    if page.stem != "speech":
        return {}
    target = speech.whisper()
    return {"target": target, "draft": speech.decoder_of(target), "clip": speech.audio(), "long": speech.audio(1, 55)}


def check(words: list[str]) -> None:
    """Run a command, or see that it is one, with options that it has."""
    if tuple(words[:3]) == QUICK:
        result = invoke(words[1:])
        assert result.exit_code == 0, result.output
    elif words[0] == "lossy-assist":
        app.parse_args(words[1:], print_error=False, exit_on_error=False)
    elif words[:2] == ["python", "-m"]:
        importlib.import_module(words[2]).app.parse_args(words[3:], print_error=False, exit_on_error=False)
    elif words[:2] == ["hf", "upload"] or words[0] == "python":
        path = words[3] if words[0] == "hf" else words[1]
        assert "/" not in path or (pages.ROOT / path).exists(), f"no such file: {path}"
    elif words[0] == "make":
        rules = (pages.ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^(\S+ )*{re.escape(words[1])}( \S+)*:", rules, re.MULTILINE), f"no target: {words[1]}"
    else:
        assert words[:2] in (["pip", "install"], ["git", "clone"]), f"an unknown command: {words}"


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


def printed(example: Example) -> None:
    """Check that a block of text is what the example before it printed."""
    assert example.namespace["printed"].strip("\n") == example.parsed.strip("\n")


SYBIL = Sybil(
    [
        PythonCodeBlockParser(),
        CodeBlockParser("bash", commands),
        CodeBlockParser("text", printed),
        inline,
        SkipParser(),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    document = SYBIL.parse(page)
    document.namespace.update(brought(page))
    with mock.patch.dict(REGISTRY):
        for example in document.examples():
            out = io.StringIO()
            with contextlib.suppress(unittest.SkipTest), contextlib.redirect_stdout(out):
                example.evaluate()
            example.namespace["printed"] = out.getvalue()
    document.namespace.clear()
    gc.collect()  # a model that a page has enabled is enabled until it is gone …
    hf_lossy_assist.disable()  # … and `generate()` is replaced until anything is disabled


def navigation() -> list[str]:
    """Return the pages of the navigation, in its order."""

    def linked(entries: list[dict]) -> Iterator[str]:
        for entry in entries:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else linked(value)

    config = tomllib.loads((pages.ROOT / "zensical.toml").read_text(encoding="utf-8"))
    return list(linked(config["project"]["nav"]))


def test_every_page_is_in_the_navigation_and_there():
    written = [place for path, place in pages.sources() if path.suffix == ".md"]
    written += [f"api/{name}.md" for name, _ in pages.reference()]
    assert sorted(navigation()) == sorted(written)


def test_readme_lists_the_guides_in_the_order_of_the_navigation():
    _, _, listed = (pages.ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Documentation\n")
    found = re.findall(r"\]\(docs/(guides/[\w-]+\.md)\)", listed)
    assert found == [place for place in navigation() if place.startswith("guides/")]


def test_the_repository_s_address_is_the_same_everywhere():
    for name in ("zensical.toml", "pyproject.toml"):
        assert f'"{pages.SOURCE}"' in (pages.ROOT / name).read_text(encoding="utf-8")


def test_the_walks_are_through_files_that_are_there():
    names = re.findall(r"\w[\w/]*\.py", (pages.DOCS / "how-it-works.md").read_text(encoding="utf-8"))
    files = [path.as_posix() for path in (pages.ROOT / "hf_lossy_assist").rglob("*.py")]
    assert not [name for name in names if not any(path.endswith(f"/{name}") for path in files)]


def test_rules_have_pictures(tmp_path: Path):
    for name in ("ears", "dropmatch"):
        plots.draw(name, tmp_path / "plot.svg")
        assert "<svg" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


def test_a_link_to_nothing_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"README.md has a link to nothing\.md"):
        pages.relinked("[there](nothing.md)", pages.ROOT / "README.md", Path("index.md"))


@pytest.mark.parametrize("module", [pages, roles])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0
