"""``lossy-assist trade-off``: accuracy against tokens kept, over a rule's settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..config import nearest
from ..errors import LossyValueError
from ..evaluation import records
from ..evaluation.modes import Models
from ..evaluation.trade_off import SWEEPS, TradeOff, measure, plot_trade_off
from .console import console, limit_threads, progress
from .models import load_heads
from .options import Gamma, PairName, Threads


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
    screen.print(trade_off_table(rows, gamma))
    if out is not None:
        plot_trade_off(rows, out / f"trade-off-{sweep}.png")


def trade_off_table(rows: Sequence[TradeOff], gamma: int) -> Table:
    """Lay out the rows."""
    table = Table(title=f"{rows[0].problems} problems, greedy, γ = {gamma}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("rule", no_wrap=True, min_width=26)
    for name in ("right\n(%)", "95 %", "mean\nkept", "tokens/\ncall", "calls/\n100", "mean\nrun", "tokens\n/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.family} {row.knob}",
            f"{100 * row.accuracy:.1f}",
            f"{100 * row.low:.0f}–{100 * row.high:.0f}",
            f"{row.mean_accepted:.2f}",
            f"{row.tokens_per_call:.2f}",
            f"{row.target_calls_per_100_tokens:.2f}",
            f"{row.mean_run:.2f}" if row.mean_run else "",
            f"{row.tokens / row.seconds:.0f}",
        )
    return table
