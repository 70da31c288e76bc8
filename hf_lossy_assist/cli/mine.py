"""``lossy-assist mine``: make training data for heads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from ..bench import records
from ..mining.guessing import Guesser
from ..mining.judge import JudgeMiner
from ..mining.manifest import Plan, open_run
from ..mining.running import Workload, longest_prompt
from ..mining.running import mine as run
from ..mining.searches import Searches
from ..mining.storage import Store, prompt_rows
from ..mining.writing import Limits, LocalWriter, eos_of
from .console import console, limit_threads
from .mining_cast import CastOptions, load_cast
from .mining_report import MiningBar, summary_table


def mine(
    out: Annotated[Path, typer.Option(help="Folder for the data; the same one continues an interrupted run.")],
    pair: Annotated[str | None, typer.Option(help="A bundled pair instead of --task, --model and --assistant.")] = None,
    task: Annotated[
        str | None, typer.Option(help="arithmetic, gsm8k, code, preference, or package.module:Name of your own.")
    ] = None,
    task_data: Annotated[str | None, typer.Option(help="A file for the task to read.")] = None,
    task_option: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A setting of the task. Repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")] = None,
    assistant: Annotated[str | None, typer.Option(help="The draft: a folder or a Hub id.")] = None,
    split: Annotated[str, typer.Option(help="Which examples of the task.")] = "train",
    num_prompts: Annotated[
        int, typer.Option(min=1, help="How many of them; a repeated command may ask for more.")
    ] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that are mined at once.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 160,
    folds: Annotated[int, typer.Option(min=1, help="Folds that the prompts are dealt into.")] = 5,
    task_workers: Annotated[
        int, typer.Option(min=0, help="Threads for tasks that run programs or ask a server; 0 for none.")
    ] = 0,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        typer.Option(help="Of the weights; float32 with --pair, else what they are stored in."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, …, or auto to spread the models.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")] = None,
) -> None:
    """Find out which tokens of a draft change the answer, and store them with the models' hidden states.

    Interrupted runs continue when the command is repeated. With `accelerate launch -m hf_lossy_assist mine …` the
    prompts are split over the processes.
    """
    limit_threads(threads)
    disable_progress_bar()
    process, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    screen = console() if process == 0 else Console(quiet=True)
    cast = load_cast(CastOptions(pair, task, task_data, task_option or (), model, assistant, dtype, device))
    compared = {"max_new_tokens": max_new_tokens, "split": split, "folds": folds, "dtype": str(cast.target.dtype)}
    searches = Searches(
        LocalWriter(cast.target, batch_size, Limits(eos_of(cast.target), max_new_tokens)),
        Guesser(cast.draft),
        cast.task,
        lambda ids: cast.tokenizer.decode(ids, skip_special_tokens=True),
        batch_size,
        task_workers,
    )
    positions = ("previous", "draft")
    miner = JudgeMiner(
        searches, {"target": cast.target, "draft": cast.draft}, {"target": positions, "draft": positions}
    )
    longest = longest_prompt((cast.target, cast.draft), max_new_tokens)
    workload = Workload(cast.task, cast.tokenizer, split, num_prompts, folds, process, processes, longest)
    origin = records.provenance(cast.draft.device, num_prompts=num_prompts, batch_size=batch_size, processes=processes)
    open_run(out, Plan("judge", cast.task.name, cast.target, cast.draft, compared), origin)
    try:
        with Store(out, process, miner.schemas()) as store, MiningBar(screen) as bar:
            run(miner, workload, store, bar)
    except KeyboardInterrupt:
        screen.print(f"stopped; {len(prompt_rows(out))} prompts are in {out}, and the same command goes on from there")
        raise typer.Exit(130) from None
    screen.print(summary_table("judge", prompt_rows(out)))
