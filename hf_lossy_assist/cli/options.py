"""Options of several commands, and parsers of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from transformers import GenerationConfig

from ..acceptors import REGISTRY, describe
from ..call.certificate import GENERATION_CONFIG
from ..errors import LossyValueError
from ..evaluation.modes import DecodingMode
from ..pairs import NAMES
from ..tasks.lookup import SHIPPED

T = TypeVar("T", int, float)

# `--help` joins the lines of a paragraph, so blank lines separate all.
RULES = "\n\n".join(["The rules and their settings:", *map(describe, REGISTRY.values())]).replace("\n  ", "\n\n- ")
"""All rules with settings, bounds and defaults, for the end of ``--help``."""

PAIRS = ", ".join(NAMES)
PairName = Annotated[str, typer.Option(help=f"The pair: {PAIRS}.")]
PairInstead = Annotated[str | None, typer.Option(help=f"A pair ({PAIRS}) instead of --model and --assistant.")]
TargetSource = Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")]
DraftSource = Annotated[str | None, typer.Option(help="The draft: a folder, a Hub id, or eagle3 for a pair's head.")]
Gamma = Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")]
VllmPython = Annotated[Path | None, typer.Option(help="The interpreter of an environment with vLLM and this package.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")]
Device = Annotated[str, typer.Option(help="Where both models run.")]
Temperature = Annotated[float, typer.Option(help="Temperature, with --sample.")]
GammaOrAuto = Annotated[str, typer.Option(help="Drafted tokens per round, or 'auto'.")]
RuleHeads = Annotated[
    list[str] | None, typer.Option(metavar="RULE=SOURCE", help="A trained head, e.g. judge=FOLDER. Repeatable.")
]
Sample = Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")]
FirstSeed = Annotated[int, typer.Option(min=0, help="Seed of the first prompt; each further prompt adds one.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="One prompt a line; openings of stories, or the pair's problems, by default.")
]
RowsFile = Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")]
TaskName = Annotated[
    str | None, typer.Option(help=f"{', '.join(SHIPPED)}, or package.module:Name of your own; a pair's own by default.")
]
TaskData = Annotated[str | None, typer.Option(help="A file for the task to read.")]
TaskOptions = Annotated[list[str] | None, typer.Option(metavar="K=V", help="A setting of the task. Repeatable.")]
PromptLookup = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Draft up to N tokens by prompt lookup, without a model."),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="The weights' type; float32 with --pair arithmetic, else as stored."),
]
DraftDtype = Annotated[
    Literal["int8", "int4"] | None,
    typer.Option(help="Round the draft's weights to int8 or int4; as --dtype by default."),
]
Prepack = Annotated[
    bool, typer.Option("--prepack", help="Order bfloat16 or float32 weights for this CPU's kernels, once.")
]
Where = Annotated[str | None, typer.Option("--device", help="cpu, cuda:0, …, or auto to spread the models.")]
RuleSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="K=V",
        help="A setting, e.g. beta=0.2, or topk.k=2 among several rules; repeatable. Or a folder of `calibrate`.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of all training commands."""

    out: Annotated[Path, typer.Option(help="Folder for the result.")]
    pair: Annotated[str | None, typer.Option(help=f"The pair with the models: {PAIRS}.")] = None
    license: Annotated[str | None, typer.Option(help="License for the card, as the Hub names it.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random number.")] = 0
    threads: Threads = None


def numbers(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise LossyValueError(f"`{option}` has to be numbers separated by commas, but is {text!r}") from None


def parse_mode(value: str) -> str | list[str]:
    names = [name.strip() for name in value.split(",")]
    return names[0] if len(names) == 1 else names


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


def stored(
    mode: str | None, config: Sequence[str] | None, head: Any, gamma: Any = None
) -> tuple[Any, dict[str, Any], Any, Any] | None:
    """Return mode, settings, head and γ of the folder in ``--config``, or None if it holds settings.

    The settings of a calibrated folder name its certificate, which refuses other models, heads and temperatures.
    """
    if config is None or len(config) != 1 or not (Path(config[0]) / GENERATION_CONFIG).is_file():
        return None
    for option, value in {"--mode": mode, "--head": head, "--num-assistant-tokens": gamma}.items():
        if value is not None:
            raise LossyValueError(f"`{option}` is set by the folder of `--config` {config[0]!r}; leave it out")
    setting = DecodingMode.stored(config[0])
    found = GenerationConfig.from_pretrained(config[0])
    return setting.rule, dict(setting.settings), getattr(found, "lossy_head", None), setting.gamma
