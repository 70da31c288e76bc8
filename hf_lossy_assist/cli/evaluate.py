"""``lossy-assist evaluate``: what every mode scores on a task, and how fast it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from .. import tasks
from ..evaluation.answers import AnswerStore
from ..evaluation.evaluate import Evaluation, EvaluationResult, named_modes, reference_of
from ..evaluation.modes import parse_gamma
from ..evaluation.quality import ModeScore
from ..mining.mining_run import this_process
from .bench_report import points
from .console import limit_threads, progress
from .models import ModelOptions
from .options import (
    RULES,
    DraftSource,
    Dtype,
    FirstSeed,
    PairInstead,
    Sample,
    TargetSource,
    TaskData,
    TaskName,
    TaskOptions,
    Threads,
    Where,
    parse_task_options,
)
from .rendering import Column, figure, number, percent, table

COMMAND_OPTIONS = {"epilog": RULES}


def evaluate(
    model: TargetSource = None,
    assistant: DraftSource = None,
    pair: PairInstead = None,
    folder: Annotated[Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.")] = None,
    task: TaskName = None,
    data: TaskData = None,
    task_option: TaskOptions = None,
    modes: Annotated[
        str, typer.Option(help="plain,draft,stock,everything,RULE[+RULE][@GAMMA][:KEY=VALUE…],…")
    ] = "plain,lossless,topk,dropmatch",
    reference: Annotated[
        str | None, typer.Option(help="The mode that all are compared with; plain, else lossless by default.")
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option(metavar="RULE=SOURCE", help="A trained head, e.g. judge=FOLDER. Repeatable.")
    ] = None,
    measure: Annotated[
        str,
        typer.Option(
            help="task: its score; rouge: ROUGE-L to the reference's text; likelihood: the target's p per token."
        ),
    ] = "task",
    limit: Annotated[int, typer.Option(min=1, help="How many problems; a repeated command may ask for more.")] = 100,
    split: Annotated[str, typer.Option(help="Which problems of the task.")] = "test",
    batch_size: Annotated[int, typer.Option(min=1, help="Problems that are answered together.")] = 1,
    gamma: Annotated[str, typer.Option(help="Drafted tokens per round, or 'auto'.")] = "5",
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response; the task's by default.")] = None,
    sample: Sample = False,
    temperature: Annotated[float, typer.Option(help="Temperature, with --sample.")] = 0.9,
    seed: FirstSeed = 0,
    dtype: Dtype = None,
    device: Where = None,
    threads: Threads = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; the same one continues an interrupted run.")
    ] = None,
) -> None:
    """Let every mode answer the same problems: scores with their paired differences, tokens kept, and speed.

    OUT gets results.jsonl (a line per problem and mode), summary.json and plot.png. With `accelerate launch -m
    hf_lossy_assist evaluate …` the problems are split over the processes.
    """
    limit_threads(threads)
    disable_progress_bar()
    listed = named_modes(modes, parse_gamma("--gamma", gamma), temperature if sample else None)
    options = ModelOptions(pair, model, assistant, dtype, device, folder)
    options.check({} if pair is not None else {"--task": task}, optional=("--assistant",))
    chosen = None if task is None else tasks.load(task, data, **parse_task_options(task_option or ()))
    loaded = options.load_for_task(chosen, head or (), assisted=False)
    evaluation = Evaluation(
        loaded.models, loaded.tokenizer, loaded.task, listed, reference or reference_of(listed), limit, split,
        batch_size, max_new_tokens, seed, this_process(), measure,
    )  # fmt: skip
    screen = Console()
    result = answer_all(evaluation, AnswerStore() if out is None else AnswerStore(out, evaluation.plan()), screen)
    if out is None or len(result.answers) == len(listed) * len(evaluation.examples):
        screen.print(score_table(result.modes.values(), evaluation.reference))
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)


def answer_all(evaluation: Evaluation, store: AnswerStore, screen: Console) -> EvaluationResult:
    """Run an evaluation to its end, showing how far it is, and save the result where the store has a folder."""
    process = evaluation.process
    shown = screen if process.number == 0 else Console(quiet=True)
    bar = progress(shown)
    task = bar.add_task("answering", total=len(evaluation.batches[process.number :: process.count]))
    done = 0
    try:
        with Live(bar, console=shown, transient=True, refresh_per_second=2) as live:
            for done, _ in enumerate(evaluation.run(store), 1):
                bar.update(task, completed=-(-done // evaluation.batch_size))
                if shown.is_terminal:
                    running = evaluation.result(store).modes.values()
                    live.update(Group(bar, score_table(running, evaluation.reference)))
    except KeyboardInterrupt:
        kept = "" if store.folder is None else f"; the same command goes on from what is in {store.folder}"
        screen.print(f"stopped after {done} problems{kept}", soft_wrap=True)
        raise typer.Exit(130) from None
    return evaluation.finish(store)


def score_table(rows: Sequence[ModeScore], reference: str) -> Table:
    """Lay out the scores of all modes."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "n": lambda row: str(row.n),
        "score\n(%)": lambda row: percent(row.score, 1),
        f"points against\n{reference} (95 %)": points,
        "mean\nkept": lambda row: number(row.mean_accepted),
        "tokens/\nround": lambda row: number(row.tokens_per_round),
        "calls/\n100": lambda row: f"{row.target_calls_per_100_tokens:.1f}",
        "tokens\n/s": lambda row: figure(row.tokens_per_second),
    }
    return table(rows, columns, "Scores; mean kept: drafted tokens per round; calls of the target per 100 tokens")
