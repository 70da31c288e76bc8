"""Copies every page of the site into one folder, with links that work there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from latex2mathml.converter import convert

import hf_lossy_assist
from hf_lossy_assist.acceptors import REGISTRY

from .plots import draw
from .tables import MODULES, with_part

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = "https://github.com/hf-lossy-assist/hf-lossy-assist"
"""Where links to files that are not pages lead."""

TITLED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""The places on the site of pages and pictures outside `docs/`, by their paths in the repository."""

_COPIED = {".css", ".png", ".svg"}
_PLOTS = "plots"
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def write_pages(folder: Path) -> None:
    """Write all pages and pictures into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, place in sources():
        out = folder / place
        out.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in _COPIED:
            shutil.copy(path, out)
        else:
            out.write_text(relinked(path.read_text(encoding="utf-8"), path, Path(place)), encoding="utf-8")
    (folder / _PLOTS).mkdir()
    for name in REGISTRY:
        draw(name, folder / _PLOTS / f"{name}.svg")
    rules = folder / "rules.md"
    sections = "\n\n".join(map(_section, REGISTRY))
    rules.write_text(with_part(rules.read_text(encoding="utf-8"), "formulas", sections), encoding="utf-8")
    (folder / "api").mkdir()
    for name, text in reference():
        (folder / "api" / f"{name}.md").write_text(text, encoding="utf-8")


def sources() -> Iterator[tuple[Path, str]]:
    """Yield each file that is a page or belongs to one, and its place on the site."""
    for path in sorted(DOCS.rglob("*")):
        if path.suffix in {".md", *_COPIED}:
            yield path, path.relative_to(DOCS).as_posix()
    for path, place in TITLED.items():
        yield ROOT / path, place


def relinked(text: str, path: Path, place: Path) -> str:
    """Return the text of the page at ``path`` for ``place`` on the site: its links lead to places on the site.

    Raises
    ------
    FileNotFoundError
        Where a link leads to nothing.

    Examples
    --------
    >>> relinked("[security](SECURITY.md#the-server)", ROOT / "README.md", Path("index.md"))
    '[security](security.md#the-server)'
    >>> relinked("[code](../tests)", DOCS / "rules.md", Path("rules.md")).removeprefix(f"[code]({SOURCE}")
    '/tree/main/tests)'
    """
    places = {source.resolve(): name for source, name in sources()}

    def moved(link: re.Match[str]) -> str:
        target = (path.parent / link[0]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{path.relative_to(ROOT)} has a link to {link[0]}, which isn't there")
        if target in places:
            return os.path.relpath(places[target], place.parent)
        return f"{SOURCE}/{'tree' if target.is_dir() else 'blob'}/main/{target.relative_to(ROOT).as_posix()}"

    parts = _CODE.split(text)
    return "".join(part if i % 2 else _LINK.sub(moved, part) for i, part in enumerate(parts))


def _section(name: str) -> str:
    """Return a rule's section: formula, picture, documentation and settings."""
    cls, formula = REGISTRY[name], REGISTRY[name].formula
    options = ("members: false", "heading_level: 3", "show_root_toc_entry: false")
    # MathML needs no script to be shown.
    keep, correction = (convert(latex, display="block") for latex in (formula.keep, formula.correction))
    return "\n\n".join(
        [
            f"## {name}",
            f"{formula.idea} Keep x iff",
            f"<div>{keep}</div>",
            "Correction, the token that replaces the first one not kept",
            f"<div>{correction}</div>",
            f"![How often {name} keeps a token]({_PLOTS}/{name}.svg)",
            "\n      ".join([f"::: {cls.__module__}.{cls.__name__}\n    options:", *options]),
        ]
    )


def reference() -> Iterator[tuple[str, str]]:
    """Yield the pages of reference, by name: the package's own, and one of each public module."""
    modules = {name: import_module(f"hf_lossy_assist.{name}") for name in MODULES}
    yield "package", _entries("hf_lossy_assist", [name for name in hf_lossy_assist.__all__ if name not in modules])
    for name, module in modules.items():
        yield name, _entries(module.__name__, _public(module))


def _public(module: ModuleType) -> list[str]:
    """Return the names of a module's functions and classes, without rules, which have a page of their own."""
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    ours = [name for name, value in found.items() if getattr(value, "__module__", "").startswith("hf_lossy_assist")]
    return [name for name in ours if found[name] not in REGISTRY.values()]


def _entries(module: str, names: Iterable[str]) -> str:
    own = f"::: {module}\n    options:\n      members: false\n      heading_level: 1\n"
    return "\n\n".join([own, *(f"::: {module}.{name}" for name in names)]) + "\n"
