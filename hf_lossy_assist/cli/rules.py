"""``lossy-assist rules``: a list of the rules, or a page on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..values import check_name
from .console import Console

if TYPE_CHECKING:
    from ..acceptors import Acceptor, Setting

READS = {
    "draft_probs": "q",
    "draft_or_point_mass": "q or 1",
    "hidden": "the target's states",
    "draft_hidden": "the draft's states",
    "dropped_heads": "dropped heads",
}
"""A rule's ``needs`` in words."""


def rules(name: Annotated[str | None, Parameter(help="A rule; all by default.")] = None, /) -> None:
    """List the rules with their settings and what they read besides the target's logits, or say more about one."""
    from ..acceptors import REGISTRY

    if name is not None:
        check_name("NAME", name, REGISTRY)
    Console().print(rules_tables() if name is None else rule_page(REGISTRY[name]))


def reads_of(rule: type[Acceptor]) -> list[str]:
    """Return a rule's inputs besides the target's logits, in words."""
    from ..acceptors import head_type

    if head_type(rule) is not None:
        return ["a trained head", "its states"]
    needs = rule().needs
    return [word for need, word in READS.items() if need in needs]


def rules_tables() -> Group:
    from ..acceptors import REGISTRY, settings_of

    settings = Table("rule", "settings: default (bounds)", "reads", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for rule in REGISTRY.values():
        listed = "\n".join(f"{each.name} {_default(each)} ({_bounds(each)})" for each in settings_of(rule))
        settings.add_row(*map(Text, (rule.name, listed or "–", ", ".join(reads_of(rule)) or "–")))
    return Group(settings, Text("`lossy-assist rules NAME` says more about one.", style="dim"))


def rule_page(rule: type[Acceptor]) -> Group:
    from ..acceptors import settings_of, summary_of

    settings = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("setting", "default", "bounds", "meaning"):
        settings.add_column(heading, overflow="fold")
    for each in settings_of(rule):
        null = f" or null ({each.unset or 'none'})" if each.may_be_none and each.default is not None else ""
        settings.add_row(*map(Text, (each.name, _default(each), _bounds(each) + null, each.help)))
    known = rule.lossless_at
    at = "never" if known is None else ", ".join(f"{key}={value:g}" for key, value in known.items()) or "always"
    strict = "" if rule.lossless_when_sampling else ", greedy"
    return Group(
        Text.assemble((rule.name, "bold"), f": {summary_of(rule)}"),
        Text(f"Source: {rule.paper}"),
        Text(f"Reads besides the target's logits: {', '.join(reads_of(rule)) or 'nothing'}"),
        Text(f"Lossless at: {at}{strict}"),
        settings if settings_of(rule) else Text(),
    )


def _default(each: Setting) -> str:
    if each.default is None:
        return each.unset or "none"
    if isinstance(each.default, bool):
        return str(each.default).lower()  # as a mode writes it
    return each.default if isinstance(each.default, str) else f"{each.default:g}".replace("inf", "∞")


def _bounds(each: Setting) -> str:
    low = "above 0" if each.low is not None and 0 < each.low < 1e-6 else f"{each.low or 0:g}"
    bounds = list(each.choices) or ([] if each.low is None else [f"{low} to {each.high:g}"])
    bounds += ["true or false"] if each.switch else []
    return " or ".join([*bounds, *([each.word] if each.word else [])]).replace("inf", "∞")
