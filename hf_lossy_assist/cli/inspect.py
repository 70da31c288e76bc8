"""``lossy-assist inspect``: a page with every token's status, in one mode or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from ..errors import LossyValueError
from ..evaluation.modes import parse_gamma, parse_modes
from ..evaluation.requests import batches_of
from ..evaluation.side_by_side import compare
from ..tasks import Example
from .console import limit_threads
from .models import ModelOptions
from .options import (
    RULES,
    Device,
    DraftSource,
    Dtype,
    GammaOrAuto,
    PairInstead,
    RuleHeads,
    Sample,
    TargetSource,
    Temperature,
    Threads,
)

COMMAND_OPTIONS = {"epilog": RULES}


def inspect(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. With --pair: its first test problem by default.")
    ] = None,
    model: TargetSource = None,
    assistant: DraftSource = None,
    pair: PairInstead = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE",
            help="plain, or RULE[+RULE][@GAMMA][:KEY=VALUE…]; lossless by default. Repeatable: side by side.",
        ),
    ] = None,
    head: RuleHeads = None,
    gamma: GammaOrAuto = "8",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation.")] = 160,
    sample: Sample = False,
    temperature: Temperature = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random number.")] = 0,
    dtype: Dtype = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Write a page of the text with every token's status: kept, kept only by a lossy rule, corrected, or unverified.

    Point at a token, or reach it by the Tab key, to see its probabilities under target and draft, the target's
    likeliest tokens, and the values that the rule compared. The page works offline.
    """
    limit_threads(threads)
    disable_progress_bar()
    if not out.parent.is_dir():
        raise LossyValueError(f"`--out` has to be a file in an existing folder, but is {str(out)!r}")
    options = ModelOptions(pair, model, assistant, dtype, device)
    options.check({"PROMPT": prompt} if pair is None else None)
    drafted, warmth = parse_gamma("--gamma", gamma), temperature if sample else None
    modes = [parsed for text in mode or ["lossless"] for parsed in parse_modes(text, drafted, warmth)]
    loaded = options.load().with_heads(head or (), device)
    for each in modes:
        each.check_heads(loaded.heads)
    text = loaded.examples(1)[0].prompt if prompt is None else prompt
    if pair is None:
        ids = loaded.tokenizer(text)["input_ids"]
    else:  # a chat model gets it as a question
        (ids,) = loaded.encode([Example(text, "")])
    (batch,) = batches_of([ids], device=torch.device(device), seed=seed)
    compare(loaded.models, loaded.tokenizer, modes, batch, max_new_tokens, prompt=text).save(out)
    Console().print(f"written: {out}", style="dim", soft_wrap=True, markup=False, highlight=False)
