"""``lossy-assist inspect``: a page that shows what became of every token, in one mode or in several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from ..errors import LossyValueError
from ..evaluation.modes import Models, parse_gamma, parse_modes
from ..evaluation.requests import batches_of
from ..inspection.comparing import compare
from ..tasks import Example
from .console import limit_threads
from .models import ModelOptions, load_heads
from .options import RULES, Device, DraftSource, Dtype, PairInstead, Sample, TargetSource, Threads

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
    head: Annotated[
        list[str] | None, typer.Option(metavar="RULE=SOURCE", help="A trained head, e.g. judge=FOLDER. Repeatable.")
    ] = None,
    gamma: Annotated[str, typer.Option(help="Drafted tokens per round, or 'auto'.")] = "8",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation.")] = 160,
    sample: Sample = False,
    temperature: Annotated[float, typer.Option(help="Temperature, with --sample.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random number.")] = 0,
    dtype: Dtype = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Write a page of the text with every token's fate: kept, kept only by a lossy rule, corrected, or unseen.

    Pointing at a token, or going to it by the Tab key, shows its probabilities by target and draft, what the target
    would rather have said, and what the rule compared. The page needs nothing from anywhere else.
    """
    limit_threads(threads)
    disable_progress_bar()
    if not out.parent.is_dir():
        raise LossyValueError(f"`--out` has to be a file in a folder that is there, but is {str(out)!r}")
    options = ModelOptions(pair, model, assistant, dtype, device)
    options.check({"PROMPT": prompt} if pair is None else None)
    drafted, warmth = parse_gamma("--gamma", gamma), temperature if sample else None
    modes = [parsed for text in mode or ["lossless"] for parsed in parse_modes(text, drafted, warmth)]
    loaded = options.load()
    models = Models(loaded.target, loaded.draft, {**loaded.heads, **load_heads(head or (), device)})
    for each in modes:
        each.check_heads(models.heads)
    text = loaded.examples(1)[0].prompt if prompt is None else prompt
    if pair is None:
        ids = loaded.tokenizer(text)["input_ids"]
    else:  # a question to it, and no text to continue, where it is a chat model
        (ids,) = loaded.encode([Example(text, "")])
    (batch,) = batches_of([ids], device=torch.device(device), seed=seed)
    compare(models, loaded.tokenizer, modes, batch, max_new_tokens, prompt=text).save(out)
    Console().print(f"written: {out}", style="dim", soft_wrap=True, markup=False, highlight=False)
