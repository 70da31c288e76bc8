"""``python -m docs.generator.tables``: write what the rules' classes say into the page of rules, between markers."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from hf_lossy_assist.acceptors import REGISTRY, Acceptor, GreedyRule, Setting, settings_of
from hf_lossy_assist.acceptors.registry import LOSSLESS, RESIDUAL, Formula
from hf_lossy_assist.cli.rules import reads_of

ROOT = Path(__file__).parents[2]
HEADER = ("name", "source", "file", "settings: default (bounds)", "reads", "lossless at")


def table() -> str:
    """Return the table of all rules."""
    rows = [HEADER, ("---",) * len(HEADER), *map(_cells, REGISTRY.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def formulas() -> str:
    """Return what every rule does, in words and as LaTeX that GitHub shows."""
    return "\n\n".join(_section(name, rule.formula) for name, rule in REGISTRY.items() if rule.formula is not None)


def _section(name: str, said: Formula) -> str:
    parts = [f"## {name}", f"{said.idea} Keep x iff", _block(said.keep)]
    parts += [_AS_LOSSLESS] if said.correction == LOSSLESS else ["Correction:", _block(said.correction)]
    if issubclass(REGISTRY[name], GreedyRule):
        own = [f"{_TOO}; the correction is then", _block(said.published)]
        parts += [f"{_TOO}."] if said.published == RESIDUAL else own
    return "\n\n".join(parts)


_AS_LOSSLESS = "Correction: that of [`lossless`](#lossless)."
_TOO = (
    "When sampling, [x also stays where `lossless` keeps it](#rules-made-for-greedy-decoding), unless `published=True`"
)


def _block(latex: str) -> str:
    return f"```math\n{latex}\n```"


PAGE = ROOT / "docs" / "rules.md"
MADE = {"rules": table, "formulas": formulas}
"""The parts of the page that are made, by the name of their markers."""

MODULES = ("acceptors", "calibration", "pairs", "tasks", "theory", "core.messages")
"""The modules that have a page of reference, beside the package itself."""


def with_part(text: str, name: str, part: str) -> str:
    """Return a page's text with ``part`` between the markers of ``name``.

    Examples
    --------
    >>> with_part("<!-- a -->old<!-- /a -->", "a", "new")
    '<!-- a -->\\nnew\\n<!-- /a -->'
    """
    before, start, rest = text.partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    return f"{before}{start}\n{part}\n{end}{after}"


def _cells(rule: type[Acceptor]) -> tuple[str, ...]:
    file = Path(inspect.getfile(rule)).relative_to(ROOT)
    at = ", ".join(f"`{key}={value:g}`" for key, value in rule.lossless_at.items()) or "always"
    elsewhere = {"sampling": "; greedily always", "greedy": "; always when sampling"}.get(rule.relaxes, "")
    return (
        f"[`{rule.name}`](#{rule.name})" if rule.formula is not None else f"`{rule.name}`",
        re.sub(r"arXiv:([\d.]+)", r"[\g<0>](https://arxiv.org/abs/\1)", rule.paper),
        f"[{file.name}](../{file.as_posix()})",
        ", ".join(map(_setting, settings_of(rule))) or "–",
        ", ".join(reads_of(rule)) or "–",
        at + ("" if rule.lossless_when_sampling else ", greedy") + elsewhere,
    )


def _setting(each: Setting) -> str:
    if each.default is None:
        default = each.unset or "none"
    else:
        default = json.dumps(each.default) if isinstance(each.default, str | bool) else f"{each.default:g}"
    bounds = ["true or false"] if each.switch else [f'"{choice}"' for choice in each.choices]
    bounds = bounds or [f"{each.low:.2g} to {each.high:g}"]
    bounds += [f'"{each.word}"'] if each.word else []
    bounds += [f"null: {each.unset or 'none'}"] if each.may_be_none and each.default is not None else []
    return f"`{each.name}` {default} ({' or '.join(bounds)})".replace("inf", "∞")


def main() -> None:
    """Write every part that is made into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, make in MADE.items():
        text = with_part(text, name, make())
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
