"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ..acceptors import REGISTRY, describe
from ..errors import LossyValueError
from ..evaluation.modes import TARGET_ALONE, DecodingMode

T = TypeVar("T", int, float)

# Blank lines between all, since the formatters of --help run the lines of a paragraph together.
RULES = "\n\n".join(["The rules and their settings:", *map(describe, REGISTRY.values())]).replace("\n  ", "\n\n- ")
"""All rules with their settings, bounds and defaults, for the end of a command's ``--help``."""

PairName = Annotated[str, typer.Option(help="The bundled pair.")]
PairInstead = Annotated[str | None, typer.Option(help="A bundled pair instead of --model and --assistant.")]
TargetSource = Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")]
DraftSource = Annotated[str | None, typer.Option(help="The draft: a folder or a Hub id.")]
Gamma = Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")]
Device = Annotated[str, typer.Option(help="Where both models run.")]
Sample = Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")]
FirstSeed = Annotated[int, typer.Option(min=0, help="Seed of the first prompt; the next has the next one.")]
RowsFile = Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")]
RuleSettings = Annotated[
    list[str] | None,
    typer.Option(metavar="K=V", help="A setting, e.g. beta=0.2; of one rule among several: topk.k=2. Repeatable."),
]


def numbers(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """Return the numbers of a comma-separated list."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise LossyValueError(f"`{option}` has to be numbers separated by commas, but is {text!r}") from None


def parse_mode(value: str) -> str | list[str]:
    """Turn ``"a"`` into a rule's name, and ``"a,b"`` into a list of them."""
    names = [name.strip() for name in value.split(",")]
    return names[0] if len(names) == 1 else names


def parse_config(items: Iterable[str], option: str = "--config") -> dict[str, Any]:
    """Turn ``KEY=VALUE`` items into a ``lossy_config``; a value is JSON where it can be, else a string.

    Examples
    --------
    >>> parse_config(["beta=0.2", "criterion=naive", "topk.k=2"])
    {'beta': 0.2, 'criterion': 'naive', 'topk': {'k': 2}}
    """
    parsed: dict[str, Any] = {}
    for item in items:
        path, equals, value = item.partition("=")
        *rule, key = path.split(".")
        if not equals or not key or len(rule) > 1:
            raise LossyValueError(f"`{option}` has to be KEY=VALUE or RULE.KEY=VALUE, but is {item!r}")
        settings = parsed.setdefault(rule[0], {}) if rule else parsed
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return parsed


def parse_task_options(items: Sequence[str]) -> dict[str, str]:
    """Read ``K=V`` settings of a task.

    Examples
    --------
    >>> parse_task_options(["votes=3", "url=http://localhost?a=b"])
    {'votes': '3', 'url': 'http://localhost?a=b'}
    """
    parsed = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not (key and separator):
            raise LossyValueError(f"`--task-option` has to be KEY=VALUE, but is {item!r}")
        parsed[key] = value
    return parsed


def parse_gamma(option: str, text: str) -> int | str:
    """Read γ: a number, or ``auto``."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise LossyValueError(f"`{option}` has to have a γ >= 1 or 'auto', but has {text!r}")
    return int(text)


def parse_modes(text: str, gamma: int | str, temperature: float | None = None) -> list[DecodingMode]:
    """Read ``--modes``: names with commas between, each ``RULE[+RULE…][@GAMMA][:KEY=VALUE…]``.

    Examples
    --------
    >>> [mode.label for mode in parse_modes("plain,stock,topk@8:k=3,topk+typical", 5)]
    ['target alone', 'stock assisted', 'topk@8:k=3', 'topk+typical']
    """
    return [_mode(part.strip(), gamma, temperature) for part in text.split(",")]


def _mode(text: str, gamma: int | str, temperature: float | None) -> DecodingMode:
    name, *settings = text.split(":")
    name, at, own = name.partition("@")
    if at:
        gamma = parse_gamma("--modes", own)
    if name == "plain":
        return DecodingMode(TARGET_ALONE, temperature=temperature)
    if name == "stock":
        stock = DecodingMode.stock(gamma, temperature)
        return DecodingMode.stock(gamma, temperature, f"{stock.label}@{own}") if at else stock
    names = name.split("+")
    for rule in names:
        if rule not in REGISTRY:
            raise LossyValueError(f"`--modes` has to name {['plain', 'stock', *REGISTRY]}, but one is {rule!r}")
    rule = names[0] if len(names) == 1 else names
    return DecodingMode(text, rule, parse_config(settings, "--modes"), gamma, temperature)
