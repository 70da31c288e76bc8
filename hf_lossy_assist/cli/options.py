"""The options that commands share, each declared once, and parsers of their values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..call.spelling import FORM
from ..errors import LossyValueError, nearest
from ..pairs import NAMES
from ..tasks.lookup import SHIPPED

PAIRS = ", ".join(NAMES)
RULES = "`lossy-assist rules` lists the rules, and `lossy-assist rules NAME` a rule's settings."
"""The end of the help of commands that take modes."""

MODELS, PROMPTS, DECODING, OUTPUT = "Models", "Prompts", "Decoding", "Output"
"""The panels of a command's options in its help."""

PairName = Annotated[
    str | None,
    typer.Option("--pair", help=f"A pair ({PAIRS}) instead of --model and --assistant.", rich_help_panel=MODELS),
]
Target = Annotated[
    str | None, typer.Option("--model", help="The target: a folder or a Hub id.", rich_help_panel=MODELS)
]
Assistant = Annotated[
    str | None,
    typer.Option(
        "--assistant", help="The draft: a folder, a Hub id, or eagle3 for a pair's head.", rich_help_panel=MODELS
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="The weights' type; float32 with --pair arithmetic, else as stored.", rich_help_panel=MODELS),
]
DraftDtype = Annotated[
    Literal["int8", "int4"] | None,
    typer.Option(help="Round the draft's weights; as --dtype by default.", rich_help_panel=MODELS),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="cpu, cuda:0, …, or auto to spread the models; a GPU if there is one.", rich_help_panel=MODELS
    ),
]
HeadSources = Annotated[
    list[str] | None,
    typer.Option(
        "--head",
        metavar="[RULE=]SOURCE",
        help="A trained head: a folder or a Hub id. Repeatable.",
        rich_help_panel=MODELS,
    ),
]
PairFolder = Annotated[
    Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.", rich_help_panel=MODELS)
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.", rich_help_panel=MODELS)
]
Prepack = Annotated[
    bool,
    typer.Option(
        "--prepack", help="Order bfloat16 or float32 weights for this CPU's kernels, once.", rich_help_panel=MODELS
    ),
]
PromptLookup = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Draft up to N tokens by prompt lookup, without a model.", rich_help_panel=MODELS
    ),
]
PromptFile = Annotated[
    Path | None, typer.Option(help="One prompt a line; openings of stories, or the pair's problems, by default.")
]
TaskName = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(SHIPPED)}, or package.module:Name of your own; a pair's own by default.",
        rich_help_panel=PROMPTS,
    ),
]
TaskData = Annotated[str | None, typer.Option(help="A file for the task to read.", rich_help_panel=PROMPTS)]
Data = Annotated[
    str | None,
    typer.Option(help="A file for the task to read; without --task, one prompt a line.", rich_help_panel=PROMPTS),
]
TaskOptions = Annotated[
    list[str] | None, typer.Option(metavar="K=V", help="A setting of the task. Repeatable.", rich_help_panel=PROMPTS)
]
Limit = Annotated[
    int, typer.Option(min=1, help="The most prompts; a repeated command may raise it.", rich_help_panel=PROMPTS)
]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts that are answered together.", rich_help_panel=PROMPTS)]
Mode = Annotated[
    str | None,
    typer.Option(
        metavar="MODE", help=f"{FORM}, or a calibrated folder; lossless by default.", rich_help_panel=DECODING
    ),
]
Modes = Annotated[
    str | None,
    typer.Option(
        metavar="MODE,…",
        help=f"Each plain, draft, stock, everything, {FORM}, or a calibrated folder.",
        rich_help_panel=DECODING,
    ),
]
Gamma = Annotated[
    str | None,
    typer.Option(
        "--gamma",
        "--num-assistant-tokens",
        metavar="N",
        help="Drafted tokens a round, or auto.",
        rich_help_panel=DECODING,
    ),
]
Sample = Annotated[
    bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.", rich_help_panel=DECODING)
]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Longest response.", rich_help_panel=DECODING)]
Engine = Annotated[
    str,
    typer.Option(help="hf: generate(); vllm: the same modes in vLLM; hf,vllm: both.", rich_help_panel=DECODING),
]
VllmPython = Annotated[Path | None, typer.Option(help="The interpreter of an environment with vLLM and this package.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the list below. Repeatable.", rich_help_panel=OUTPUT),
]


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


def listed(settings: Mapping[str, str]) -> str:
    """Return the end of a command's help: the settings that ``--set`` takes."""
    return "\n".join(["\b", "Settings:", *(f"  {key}: {words}" for key, words in settings.items())])


def read_set(items: Sequence[str] | None, known: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings of ``--set``; a value is JSON, or else a text.

    Examples
    --------
    >>> read_set(["repeats=3", "clock=cpu"], {"repeats": "how often", "clock": "which"})
    {'repeats': 3, 'clock': 'cpu'}
    """
    found: dict[str, Any] = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals or (key not in known and not key.startswith("task.")):
            raise LossyValueError(
                f"`--set` has to be KEY=VALUE with a key of {list(known)}, but is {item!r}{nearest(key, known)}"
            )
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found
