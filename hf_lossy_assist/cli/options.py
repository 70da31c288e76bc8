"""Options that several commands have, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from transformers import GenerationConfig

from ..acceptors import REGISTRY, describe
from ..errors import LossyValueError
from ..evaluation.modes import GENERATION_CONFIG, DecodingMode
from ..tasks.lookup import SHIPPED

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
PromptFile = Annotated[
    Path | None, typer.Option(help="One prompt a line; openings of stories, or the pair's problems, by default.")
]
RowsFile = Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")]
TaskName = Annotated[
    str | None, typer.Option(help=f"{', '.join(SHIPPED)}, or package.module:Name of your own; a pair's own by default.")
]
TaskData = Annotated[str | None, typer.Option(help="A file for the task to read.")]
TaskOptions = Annotated[list[str] | None, typer.Option(metavar="K=V", help="A setting of the task. Repeatable.")]
AssistantTokenizer = Annotated[
    str | None, typer.Option(metavar="SOURCE", help="The draft's tokenizer, where its own is not beside it.")
]
PromptLookup = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Draft without a model: up to N tokens that follow the same words before."),
]
RuleName = Annotated[
    str | None, typer.Option(help="The rule, lossless by default; of several, with commas between, any may keep.")
]
HeadSource = Annotated[
    str | None,
    typer.Option(help="The trained head of judge or sprinter: a Hub id or a folder; a pair's own by default."),
]
Tokens = Annotated[
    int | None, typer.Option("--num-assistant-tokens", min=1, help="Drafted tokens per round; 8 by default.")
]
Temperature = Annotated[float | None, typer.Option(help="Temperature; needs --sample.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of every random number.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Of the weights; float32 with --pair arithmetic, else what they are stored in."),
]
Where = Annotated[str | None, typer.Option("--device", help="cpu, cuda:0, …, or auto to spread the models.")]
RuleSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="K=V",
        help="A setting, e.g. beta=0.2; of one of several rules: topk.k=2. Repeatable. Or a folder of `calibrate`.",
    ),
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
    """Return mode, settings, head and γ of the folder that ``--config`` names, or None if it names none.

    What ``calibrate`` has written is certified: its settings name the certificate, so that no other models, heads and
    draws are let through.
    """
    if config is None or len(config) != 1 or not (Path(config[0]) / GENERATION_CONFIG).is_file():
        return None
    for option, value in {"--mode": mode, "--head": head, "--num-assistant-tokens": gamma}.items():
        if value is not None:
            raise LossyValueError(f"`{option}` is what the folder of `--config` {config[0]!r} says; leave it out")
    setting = DecodingMode.stored(config[0])
    found = GenerationConfig.from_pretrained(config[0])
    return setting.rule, dict(setting.settings), getattr(found, "lossy_head", None), setting.gamma
