"""The options that commands share, each declared once, and parsers of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import LossyValueError, nearest
from ..generation.spelling import FORM, split
from ..pairs import NAMES
from ..tasks.lookup import SHIPPED
from ..values import json_or_text

PAIRS = ", ".join(NAMES)
RULES = "`lossy-assist rules` lists the rules, and `lossy-assist rules NAME` a rule's settings."
"""The end of the help of commands that take modes."""

of_models, of_prompts, of_decoding, of_output = (
    partial(typer.Option, rich_help_panel=name) for name in ("Models", "Prompts", "Decoding", "Output")
)
"""Options by the panels of a command's help."""

PromptText = Annotated[str | None, typer.Argument(help="The text to continue. With --pair: a test problem by default.")]
PairName = Annotated[str | None, of_models("--pair", help=f"A pair ({PAIRS}) instead of --model and --assistant.")]
Target = Annotated[str | None, of_models("--model", help="The target: a folder or a Hub id.")]
Assistant = Annotated[
    str | None,
    of_models(
        "--assistant",
        help="The draft: a folder, a Hub id, mtp for the target's own layer, or a pair's draft, eagle3 or dflash.",
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    of_models(help="The weights' type; float32 with --pair arithmetic, else as stored."),
]
DraftDtype = Annotated[
    Literal["int8", "int4"] | None, of_models(help="Round the draft's weights; as --dtype by default.")
]
HeadSources = Annotated[
    list[str] | None,
    of_models("--head", metavar="[RULE=]SOURCE", help="A trained head: a folder or a Hub id. Repeatable."),
]
Threads = Annotated[int | None, of_models(min=1, help="CPU threads; torch's choice by default.")]
TaskName = Annotated[
    str | None,
    of_prompts(help=f"{', '.join(SHIPPED)}, or package.module:Name of your own; a pair's own by default."),
]
TaskData = Annotated[str | None, of_prompts(help="A file for the task to read.")]
Data = Annotated[str | None, of_prompts(help="A file for the task to read; without --task, one prompt a line.")]
Limit = Annotated[int, of_prompts(min=1, help="The most prompts; a repeated command may raise it.")]
BatchSize = Annotated[int, of_prompts(min=1, help="Prompts that are answered together.")]
Mode = Annotated[str | None, of_decoding(metavar="MODE", help=f"{FORM}, or a calibrated folder.")]
Modes = Annotated[
    str | None,
    of_decoding(metavar="MODE,…", help=f"Each plain, draft, stock, everything, {FORM}, or a calibrated folder."),
]
Sample = Annotated[bool, of_decoding("--sample", help="Draw tokens instead of taking the likeliest.")]
MaxNewTokens = Annotated[int | None, of_decoding(min=1, help="Longest response.")]
Engine = Annotated[str, of_decoding(help="hf: generate(); vllm: the same modes in vLLM; hf,vllm: both.")]
Settings = Annotated[list[str] | None, of_output("--set", metavar="KEY=VALUE,…", help="Settings of the list below.")]
OutFolder = Annotated[Path | None, of_output(help="Folder for the results; an interrupted run goes on there.")]


def numbers(option: str, text: str | None, kind: type) -> tuple:
    """Read numbers separated by commas."""
    try:
        return tuple(map(kind, text.split(","))) if text else ()
    except ValueError:
        raise LossyValueError(f"`{option}` has to be numbers separated by commas, but is {text!r}") from None


def read_set(items: Sequence[str] | None, known: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings of ``--set``; a value is JSON, or else a text.

    Examples
    --------
    >>> read_set(["repeats=3,clock=cpu"], {"repeats": "how often", "clock": "which"})
    {'repeats': 3, 'clock': 'cpu'}
    """
    found: dict[str, Any] = {}
    for item in (each for text in items or () for each in split(text, ",")):
        key, equals, value = item.partition("=")
        if not equals or (key not in known and not key.startswith("task.")):
            raise LossyValueError(
                f"`--set` has to be KEY=VALUE with a key of {list(known)}, but is {item!r}{nearest(key, known)}"
            )
        found[key] = json_or_text(value)
    return found
