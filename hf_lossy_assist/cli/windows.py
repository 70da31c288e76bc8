"""``lossy-assist windows``: what each γ costs, and the automatic one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..evaluation import records
from ..evaluation.draft_lengths import measure
from ..evaluation.modes import Models
from ..evaluation.requests import batches_of
from .console import console, limit_threads, progress
from .options import PairName, Threads, numbers


def windows(
    pair: PairName = "arithmetic",
    gammas: Annotated[str, typer.Option(help="Values of γ, with commas between.")] = "1,2,3,4,5,6,8,10,12,16,20,24",
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 40,
    mode: Annotated[str, typer.Option(help="The rule.")] = "lossless",
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Compare `num_assistant_tokens="auto"` with fixed numbers of drafted tokens, in calls and their median times."""
    limit_threads(threads)
    disable_progress_bar()
    wanted = [*numbers("--gammas", gammas, int), "auto"]
    loaded, screen = pairs.load(pair), console()
    prompts = [loaded.task.encode(example, loaded.tokenizer) for example in loaded.task.examples("test", problems)]
    with (
        progress(screen) as bar,
        records.written(out, records.provenance("cpu", problems=problems, mode=mode)) as write,
    ):
        task = bar.add_task("answering", total=len(wanted) * problems)
        rows = measure(
            Models(loaded.target, loaded.draft, loaded.rule_heads), wanted, batches_of(prompts),
            loaded.task.max_new_tokens, rule=mode, on_answer=lambda: bar.advance(task),
        )  # fmt: skip
        for row in rows:
            write(row)
    best = min(row.seconds for row in rows if row.gamma != "auto")
    table = Table(title=f"{problems} problems, {mode}, greedy", box=SIMPLE_HEAD)
    for name in ("γ", "draft calls", "target calls", "mean kept", "ms per token", "× best"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.gamma), str(row.draft_calls), str(row.target_calls), f"{row.mean_accepted:.2f}",
            f"{1000 * row.seconds / row.tokens:.3f}", f"{row.seconds / best:.3f}",
        )  # fmt: skip
    screen.print(table)
