"""``lossy-assist rules``: a list of the rules, or a page on one."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ..values import check_name
from .console import Console


def rules(name: Annotated[str | None, Parameter(help="A rule; all by default.")] = None, /) -> None:
    """List the rules with their settings, sources and what they read besides the target's logits."""
    from ..acceptors import REGISTRY
    from .rule_pages import rule_page, rules_tables

    if name is not None:
        check_name("NAME", name, REGISTRY)
    Console().print(rules_tables() if name is None else rule_page(REGISTRY[name]))
