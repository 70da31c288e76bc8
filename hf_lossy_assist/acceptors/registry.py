"""Declarations of rules: names, formulas, and settings with bounds, from which checks, help and tables follow."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import torch

from .. import values
from ..errors import LossyValueError
from ..heads import Head, place_head

Rule = type[Any]
"""A class of rules: a subclass of :class:`~hf_lossy_assist.acceptors.Acceptor`, which is declared by what is here."""

REGISTRY: dict[str, Rule] = {}
"""All rules by name."""

RESIDUAL = r"\mathrm{norm}\left([p - q]_+\right)"
BEST = r"\mathrm{argmax}\, p"
TARGET = r"p; \qquad \text{greedy: } " + BEST
LOSSLESS = RESIDUAL + r"; \qquad \text{greedy: } " + BEST


@dataclass(frozen=True)
class Formula:
    """A rule in LaTeX, for the documentation."""

    idea: str  # what the rule does, in words
    keep: str  # which drafted tokens x are kept
    correction: str = LOSSLESS  # the distribution of the token that replaces x
    drawn: tuple[Mapping[str, Any], ...] = ({},)  # settings to plot the rule at
    published: str = RESIDUAL  # the correction of a draw with `published=True`
    do_sample: bool = True  # whether to plot sampling, or greedy decoding


def register(rule: Rule) -> Rule:
    """Make a rule available as ``lossy_mode=rule.name``; a class decorator. The name has to be new.

    Its ``repr`` leaves out settings at their defaults.
    """
    if REGISTRY.setdefault(rule.name, rule) is not rule:
        raise LossyValueError(f"`name` of a rule has to be new, but {rule.name!r} is {REGISTRY[rule.name].__name__}")
    rule.__repr__ = _shown
    return rule


def _shown(rule: Any) -> str:
    defaults = {each.name: each.default for each in settings_of(type(rule))}
    own = {x.name: getattr(rule, x.name) for x in fields(rule)}
    shown = [f"{name}={value!r}" for name, value in own.items() if value != defaults.get(name, MISSING)]
    return f"{type(rule).__name__}({', '.join(shown)})"


@dataclass(frozen=True)
class Setting:
    """One setting of a rule: its name, the arguments of :func:`setting`, and its entry in the docstring as ``help``."""

    name: str
    default: Any
    low: float | None = None
    high: float = float("inf")
    integer: bool = False
    choices: tuple[str, ...] = ()
    instead_of: str | None = None
    unset: str | None = None
    word: str | None = None
    switch: bool = False
    help: str = ""

    @property
    def may_be_none(self) -> bool:
        """Whether None is a value."""
        return self.default is None or self.unset is not None

    def check(self, rule: Any) -> None:
        """Raise :class:`LossyValueError` if the rule's value is out of bounds."""
        value = getattr(rule, self.name)
        if value is None and self.may_be_none:
            return
        if self.bound is not None:
            self.bound.check(self.name, value, f" of the rule {rule.name!r}")
        if self.instead_of is not None and (other := getattr(rule, self.instead_of)) is not None:
            raise LossyValueError(
                f"`{self.instead_of}` and `{self.name}` of the rule {rule.name!r} exclude each other: give one of "
                f"{other!r} and {value!r}"
            )

    @functools.cached_property
    def bound(self) -> values.Rule | None:
        """The condition on a value other than None, if there is one."""
        if self.choices:
            return values.Rule(f"one of {list(self.choices)}", self.choices.__contains__)
        if self.switch:
            return values.BOOL
        return None if self.low is None else values.bounded(self.low, self.high, integer=self.integer, word=self.word)


def setting(default: Any, low: float | None = None, high: float = float("inf"), **more: Any) -> Any:
    """Declare a rule's setting: a dataclass field with bounds, which are checked whenever a rule is made.

    Parameters
    ----------
    default
        The default; None for a setting that may be left out.
    low, high
        The bounds of a number, both included. Without them, the rule itself checks the value.
    more
        ``integer=True`` for whole numbers only; ``choices``, the allowed strings; ``instead_of``, a setting that
        excludes this one; ``unset``, the meaning of None in words, which allows it; ``word``, a string allowed instead
        of a number; ``switch=True`` for a bool; ``kw_only=True`` for a setting that is given by name and comes last.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from hf_lossy_assist.acceptors import Acceptor
    >>> @dataclass(frozen=True)
    ... class Bold(Acceptor):
    ...     share: float = setting(0.1, 0, 1)
    ...     name = "bold"
    ...     def keep(self, v):
    ...         return v.p_x >= self.share
    >>> Bold(share=2)
    Traceback (most recent call last):
    hf_lossy_assist.errors.LossyValueError: `share` of the rule 'bold' has to be a number >= 0 and <= 1, but is 2
    """
    kw_only = more.pop("kw_only", False)
    return field(default=default, kw_only=kw_only, metadata={"setting": {"low": low, "high": high, **more}})


@functools.cache
def settings_of(rule: Rule) -> tuple[Setting, ...]:
    """Return the settings of a rule: its fields without the head and internal ones.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Regret
    >>> [(each.name, each.default, each.low, each.high) for each in settings_of(Regret)]
    [('total_regret', 8.0, 0, inf), ('local_regret', 0.25, 0, inf), ('mismatches', 2, 0, inf)]
    """
    about = {name: text for kind in reversed(rule.__mro__) for name, text in _parameters(kind).items()}
    return tuple(
        Setting(
            x.name,
            x.default if x.default_factory is MISSING else x.default_factory(),
            **x.metadata.get("setting", {}),
            help=about.get(x.name, ""),
        )
        for x in sorted(fields(rule), key=lambda x: x.kw_only)
        if not x.metadata.keys() & {"head", "internal"}
    )


def summary_of(rule: Rule) -> str:
    """Return the first paragraph of a rule's docstring as one line, without markup."""
    return _line((inspect.getdoc(rule) or "").partition("\n\n")[0])


def _line(text: str) -> str:
    return " ".join(text.split()).replace("``", "")


def _parameters(rule: Rule) -> Mapping[str, str]:
    """Return the text about each name in the section "Parameters" of a rule's docstring."""
    _, _, section = (inspect.getdoc(rule) or "").partition("\nParameters\n----------\n")
    entries = re.findall(r"^(\S.*)\n((?: +.*(?:\n|$))+)", re.split(r"\n\w+\n---", section)[0], re.MULTILINE)
    return {name: _line(text) for names, text in entries for name in names.split(", ")}


@functools.cache
def head_type(rule: Rule) -> type[Head] | None:
    """Return the class of trained head that a rule uses, or None."""
    return next((x.metadata["head"] for x in fields(rule) if "head" in x.metadata), None)


def place_rule_head(rule: Rule, source: Any, device: torch.device | str) -> Head:
    """Return a rule's head on ``device``."""
    return place_head(f"`lossy_head` of the rule {rule.name!r}", head_type(rule), source, device)
