"""``lossy-assist windows``: what each γ costs, and the automatic one."""

from __future__ import annotations

from typing import Annotated

import typer
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..evaluation import records
from ..evaluation.draft_lengths import measure
from ..evaluation.modes import Models
from ..evaluation.requests import batches_of
from .console import console, limit_threads, progress
from .options import PairName, RowsFile, Threads, numbers
from .rendering import number, table


def windows(
    pair: PairName = "arithmetic",
    gammas: Annotated[str, typer.Option(help="Values of γ, with commas between.")] = "1,2,3,4,5,6,8,10,12,16,20,24",
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 40,
    mode: Annotated[str, typer.Option(help="The rule.")] = "lossless",
    threads: Threads = None,
    out: RowsFile = None,
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
    columns = {
        "γ": lambda row: str(row.gamma),
        "draft calls": lambda row: str(row.draft_calls),
        "target calls": lambda row: str(row.target_calls),
        "mean kept": lambda row: number(row.mean_accepted),
        "ms per token": lambda row: f"{1000 * row.seconds / row.tokens:.3f}",
        "× best": lambda row: f"{row.seconds / best:.3f}",
    }
    screen.print(table(rows, columns, f"{problems} problems, {mode}, greedy"))
