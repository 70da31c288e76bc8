"""The sections of the page of rules: formula, picture, documentation and settings of each."""

from __future__ import annotations

from latex2mathml.converter import convert

from hf_lossy_assist.acceptors import REGISTRY, Acceptor

PLOTS = "plots"
"""The folder of the pictures, beside the page."""


def section(name: str) -> str:
    """Return a rule's section, as Markdown."""
    cls, formula = REGISTRY[name], REGISTRY[name].formula
    return "\n\n".join(
        [
            f"## {name}",
            f"{formula.idea} Keep x iff{_display(formula.keep)}",
            f"Correction, the token that replaces the first one not kept{_display(formula.correction)}",
            f"![How often {name} keeps a token]({PLOTS}/{name}.svg)",
            _reference(cls),
        ]
    )


def _display(latex: str) -> str:
    """Return a formula as MathML, which needs no script to be shown, in a block of its own."""
    return f"\n\n<div>{convert(latex, display='block')}</div>"


def _reference(cls: type[Acceptor]) -> str:
    options = ("members: false", "heading_level: 3", "show_root_toc_entry: false")
    return "\n      ".join([f"::: {cls.__module__}.{cls.__name__}\n    options:", *options])
