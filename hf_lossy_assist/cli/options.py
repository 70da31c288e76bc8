"""The options that commands share, each declared once, and parsers of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..call.spelling import FORM
from ..errors import LossyValueError
from ..pairs import NAMES
from ..tasks.lookup import SHIPPED

PAIRS = ", ".join(NAMES)
RULES = "`lossy-assist rules` lists the rules, and `lossy-assist rules NAME` a rule's settings."
"""The end of the help of commands that take modes."""

Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")]
Prepack = Annotated[
    bool, typer.Option("--prepack", help="Order bfloat16 or float32 weights for this CPU's kernels, once.")
]
PromptLookup = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Draft up to N tokens by prompt lookup, without a model.")
]
Mode = Annotated[str | None, typer.Option(metavar="MODE", help=f"{FORM}, or a calibrated folder; lossless by default.")]
Modes = Annotated[
    str | None,
    typer.Option(metavar="MODE,…", help=f"Each plain, draft, stock, everything, {FORM}, or a calibrated folder."),
]
Gamma = Annotated[
    str | None,
    typer.Option("--gamma", "--num-assistant-tokens", metavar="N", help="Drafted tokens a round, or auto."),
]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Longest response.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="One prompt a line; openings of stories, or the pair's problems, by default.")
]
TaskName = Annotated[
    str | None, typer.Option(help=f"{', '.join(SHIPPED)}, or package.module:Name of your own; a pair's own by default.")
]
TaskData = Annotated[str | None, typer.Option(help="A file for the task to read.")]
TaskOptions = Annotated[list[str] | None, typer.Option(metavar="K=V", help="A setting of the task. Repeatable.")]
VllmPython = Annotated[Path | None, typer.Option(help="The interpreter of an environment with vLLM and this package.")]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of all training commands."""

    out: Annotated[Path, typer.Option(help="Folder for the result.")]
    pair: Annotated[str | None, typer.Option(help=f"The pair with the models: {PAIRS}.")] = None
    license: Annotated[str | None, typer.Option(help="License for the card, as the Hub names it.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random number.")] = 0
    threads: Threads = None


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


def numbers(option: str, text: str | None, kind: type) -> tuple:
    """Read numbers separated by commas."""
    try:
        return tuple(map(kind, text.split(","))) if text else ()
    except ValueError:
        raise LossyValueError(f"`{option}` has to be numbers separated by commas, but is {text!r}") from None
