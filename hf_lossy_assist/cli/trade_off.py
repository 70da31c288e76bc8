"""``lossy-assist trade-off``: accuracy against tokens kept, over a rule's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..config import nearest
from ..errors import LossyValueError
from ..evaluation import records
from ..evaluation.modes import Models
from ..evaluation.trade_off import SWEEPS, measure, plot_trade_off
from .console import console, limit_threads, progress
from .models import load_heads
from .options import Gamma, PairName, Threads
from .rendering import number, percent, table


def trade_off(
    sweep: Annotated[str, typer.Argument(help="What is compared: judge or sprinter.")] = "judge",
    pair: PairName = "arithmetic",
    head: Annotated[str | None, typer.Option(help="Another head than the pair's: a folder or a Hub id.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems of the split.")] = 500,
    split: Annotated[str, typer.Option(help="Which problems.")] = "test",
    gamma: Gamma = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems at a time; speeds are a user's own at 1 only.")] = 1,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the rows (JSON lines) and the plot.")] = None,
) -> None:
    """Answer a task's problems at many settings of a rule and of those it competes with, greedily."""
    if sweep not in SWEEPS:
        raise LossyValueError(f"`SWEEP` has to be one of {list(SWEEPS)}, but is {sweep!r}{nearest(sweep, SWEEPS)}")
    limit_threads(threads)
    disable_progress_bar()
    loaded = pairs.load(pair)
    heads = {**loaded.rule_heads, **load_heads([] if head is None else [f"{sweep}={head}"], "cpu")}
    if sweep not in heads:
        raise LossyValueError(f"`--head` has to be given: the pair {pair!r} has none for {sweep!r}")
    points, examples = SWEEPS[sweep](), loaded.task.examples(split, problems)
    screen, rows = console(), []
    origin = records.provenance("cpu", gamma=gamma, split=split, problems=problems, batch_size=batch_size)
    with (
        progress(screen) as bar,
        records.written(None if out is None else out / f"trade-off-{sweep}.jsonl", origin) as write,
    ):
        task = bar.add_task("answering", total=len(points) * len(examples))
        for row in measure(
            Models(loaded.target, loaded.draft, heads), loaded.tokenizer, loaded.task, points, examples, gamma=gamma,
            batch_size=batch_size, on_batch=lambda n: bar.advance(task, n),
        ):  # fmt: skip
            write(row)
            rows.append(row)
    columns = {
        "rule": lambda row: f"{row.family} {row.knob}",
        "right\n(%)": lambda row: percent(row.accuracy, 1),
        "95 %": lambda row: f"{percent(row.low)}–{percent(row.high)}",
        "mean\nkept": lambda row: number(row.mean_accepted),
        "tokens/\ncall": lambda row: number(row.tokens_per_call),
        "calls/\n100": lambda row: number(row.target_calls_per_100_tokens),
        "mean\nrun": lambda row: number(row.mean_run or None),
        "tokens\n/s": lambda row: f"{row.tokens / row.seconds:.0f}",
    }
    screen.print(table(rows, columns, f"{len(examples)} problems, greedy, γ = {gamma}"))
    if out is not None:
        plot_trade_off(rows, out / f"trade-off-{sweep}.png")
