"""``lossy-assist windows``: what each γ costs, and the automatic one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..bench import records
from ..bench.windows import measure
from .console import console, limit_threads, progress
from .options import numbers


def windows(
    pair: Annotated[str, typer.Option(help="The bundled pair.")] = "arithmetic",
    gammas: Annotated[str, typer.Option(help="The windows, with commas between.")] = "1,2,3,4,5,6,8,10,12,16,20,24",
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 40,
    mode: Annotated[str, typer.Option(help="The rule.")] = "lossless",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Compare `num_assistant_tokens="auto"` with every fixed window, in calls and their median times."""
    limit_threads(threads)
    disable_progress_bar()
    wanted = [*numbers("--gammas", gammas, int), "auto"]
    loaded, screen = pairs.load(pair), console()
    examples = loaded.task.examples("test", problems)
    with (
        progress(screen) as bar,
        records.written(out, records.provenance("cpu", problems=problems, mode=mode)) as write,
    ):
        task = bar.add_task("answering", total=len(wanted) * problems)
        rows = measure(loaded, wanted, examples, mode=mode, on_answer=lambda: bar.advance(task))
        for row in rows:
            write(row)
    best = min(row.seconds for row in rows if row.window != "auto")
    table = Table(title=f"{problems} problems, {mode}, greedy", box=SIMPLE_HEAD)
    for name in ("γ", "draft calls", "target calls", "mean kept", "ms per token", "× best"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.window), str(row.draft_calls), str(row.target_calls), f"{row.mean_accepted:.2f}",
            f"{1000 * row.seconds / row.tokens:.3f}", f"{row.seconds / best:.3f}",
        )  # fmt: skip
    screen.print(table)
