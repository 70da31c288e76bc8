"""``lossy-assist mine``: make training data for heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from .. import tasks
from ..errors import LossyValueError
from ..evaluation import records
from ..mining.manifest import MiningPlan, open_run
from ..mining.mining_run import MiningWorkload, longest_prompt, this_process
from ..mining.mining_run import mine as run
from ..mining.storage import Store, prompt_rows
from .console import console, limit_threads
from .mining_plan import Labels, MinerFactory, MiningOptions, check_readable
from .mining_report import MiningBar, summary_table
from .models import ModelOptions
from .options import DraftSource, TargetSource, Threads, parse_task_options


def mine(
    out: Annotated[
        Path | None, typer.Option(help="Folder for the data; the same one continues an interrupted run.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A bundled pair instead of --task, --model and --assistant.")] = None,
    task: Annotated[
        str | None, typer.Option(help="arithmetic, gsm8k, code, preference, or package.module:Name of your own.")
    ] = None,
    task_data: Annotated[str | None, typer.Option(help="A file for the task to read.")] = None,
    task_option: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A setting of the task. Repeatable.")
    ] = None,
    unsafe_no_isolation: Annotated[
        bool,
        typer.Option("--unsafe-no-isolation", help="code: run programs without bwrap, with all of your rights."),
    ] = False,
    model: TargetSource = None,
    assistant: DraftSource = None,
    labels: Annotated[
        Labels,
        typer.Option(help="judge: which mismatches matter; ratio: both models' probabilities of drafted tokens."),
    ] = "judge",
    split: Annotated[str, typer.Option(help="Which examples of the task.")] = "train",
    num_prompts: Annotated[
        int, typer.Option(min=1, help="How many of them; a repeated command may ask for more.")
    ] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that are mined at once.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 160,
    sampling: Annotated[
        bool, typer.Option("--sampling", help="Draw responses, by draws that depend on seed and prefix alone.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Of draws, 1 by default; needs --sampling or --labels ratio.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of draws.")] = 0,
    folds: Annotated[int, typer.Option(min=1, help="Folds that the prompts are dealt into.")] = 5,
    features_target: Annotated[
        bool, typer.Option("--features-target", help="judge: store the states after the target's tokens too.")
    ] = False,
    rows_per_kind: Annotated[
        int, typer.Option(min=1, help="ratio: drafted tokens per prompt, for each of the four kinds of prefix.")
    ] = 8,
    task_workers: Annotated[
        int, typer.Option(min=0, help="Threads for tasks that run programs or ask a server; 0 for none.")
    ] = 0,
    target_api: Annotated[
        str | None, typer.Option(metavar="URL", help="The target is behind this OpenAI-compatible API, …/v1.")
    ] = None,
    target_api_model: Annotated[str | None, typer.Option(help="Its name there.")] = None,
    target_api_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for one of its answers.")] = 120.0,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        typer.Option(help="Of the weights; float32 with --pair, else what they are stored in."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, …, or auto to spread the models.")] = None,
    threads: Threads = None,
) -> None:
    """Find out which tokens of a draft change the answer, and store them with the models' hidden states.

    Interrupted runs continue when the command is repeated. With `accelerate launch -m hf_lossy_assist mine …` the
    prompts are split over the processes.
    """
    limit_threads(threads)
    disable_progress_bar()
    if out is None:
        raise LossyValueError("`--out` has to be a folder for the data, but is not given")
    task_options = (*(task_option or ()), *(["unsafe_no_isolation=true"] if unsafe_no_isolation else []))
    options = MiningOptions(
        labels, split, batch_size, max_new_tokens, sampling, temperature, seed, folds, features_target, rows_per_kind,
        task_workers, target_api, target_api_model, target_api_timeout, task_data, task_options,
    )  # fmt: skip
    named = ModelOptions(pair, model, assistant, dtype, device)
    options.check()
    named.check({"--task": task}, optional=() if target_api is None else ("--model",))
    asked = None if task is None else tasks.load(task, task_data, **parse_task_options(options.task_options))
    cast = named.load(asked)
    check_readable(cast)
    factory = MinerFactory(options, cast)
    workload = MiningWorkload(
        cast.task,
        cast.tokenizer,
        split,
        num_prompts,
        folds,
        this_process(),
        longest=longest_prompt(cast.by_role.values(), max_new_tokens),
    )
    plan = MiningPlan(labels, cast.task.name, cast.target, cast.draft, options.compared(cast))
    origin = records.provenance(
        cast.draft.device, num_prompts=num_prompts, batch_size=batch_size, processes=workload.process.count
    )
    _mine(out, plan, workload, factory, origin)


def _mine(out: Path, plan: MiningPlan, workload: MiningWorkload, factory: MinerFactory, origin: dict[str, Any]) -> None:
    screen = console()
    miner = factory.miner()
    open_run(out, plan, origin)
    try:
        # One bar is enough for all processes.
        bar = MiningBar(screen if workload.process.number == 0 else Console(quiet=True))
        with Store(out, workload.process.number, miner.schemas(), workload.process.count) as store, bar:
            run(miner, workload, store, bar)
    except KeyboardInterrupt:
        screen.print(f"stopped; {len(prompt_rows(out))} prompts are in {out}, and the same command goes on from there")
        raise typer.Exit(130) from None
    rows = prompt_rows(out)
    if len(rows) < workload.size():
        screen.print(f"process {workload.process.number} is done; others are still at work on {out}")
    else:
        screen.print(summary_table(plan.kind, rows))
