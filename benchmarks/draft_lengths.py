"""``python -m benchmarks.draft_lengths``: the cost of each γ, and of the automatic one."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from benchmarks import command
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import DraftSource, PairName, RowsFile, Threads, numbers
from hf_lossy_assist.core.statistics import LossyStats, joined
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import PromptBatch, batches_of, run_request
from hf_lossy_assist.evaluation.tables import number, table


def windows(
    pair: PairName = "arithmetic",
    assistant: DraftSource = None,
    gammas: Annotated[str, typer.Option(help="Values of γ, separated by commas.")] = "1,2,3,4,5,6,8,10,12,16,20,24",
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 40,
    mode: Annotated[str, typer.Option(help="The rule.")] = "lossless",
    threads: Threads = None,
    out: RowsFile = None,
) -> None:
    """Compare `num_assistant_tokens="auto"` with fixed numbers of drafted tokens, in calls and their median times."""
    limit_threads(threads)
    disable_progress_bar()
    wanted = [*numbers("--gammas", gammas, int), "auto"]
    loaded, screen = ModelOptions(pair, assistant=assistant, device="cpu").load(), Console()
    prompts = loaded.encode(loaded.examples(problems))
    with (
        progress(screen) as bar,
        records.written(out, records.provenance("cpu", problems=problems, mode=mode)) as write,
    ):
        task = bar.add_task("answering", total=len(wanted) * len(prompts))
        rows = measure(
            loaded.models, wanted, batches_of(prompts), loaded.length, rule=mode, on_answer=lambda: bar.advance(task),
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
    screen.print(table(rows, columns, f"{len(prompts)} problems, {mode}, greedy"))


Call = tuple[str, int]
"""Which model, and how many tokens it read."""


@dataclass(frozen=True)
class DraftLengthCost:
    """The cost of one number of drafted tokens over all prompts."""

    gamma: int | str  # drafted tokens per round, or ``"auto"``
    # Forward passes after the prompts'.
    draft_calls: int
    target_calls: int
    tokens: int
    mean_accepted: float
    seconds: float  # the calls, each at the median time of calls of its model over as many tokens


def measure(
    models: Models,
    gammas: Sequence[int | str],
    prompts: Sequence[PromptBatch],
    max_new_tokens: int = 100,
    *,
    rule: str = "lossless",
    on_answer: Callable[[], None] = lambda: None,
) -> list[DraftLengthCost]:
    """Answer every prompt with every number of drafted tokens, interleaved, greedily.

    A batch of ``prompts`` has one prompt.
    """
    times: dict[Call, list[float]] = defaultdict(list)
    counts: dict[int | str, Counter[Call]] = {gamma: Counter() for gamma in gammas}
    stats: dict[int | str, list[LossyStats]] = {gamma: [] for gamma in gammas}
    for prompt in prompts:
        for gamma in gammas:
            response = run_request(models, DecodingMode(rule, rule, gamma=gamma), prompt, max_new_tokens, meter=True)
            for role, forwards in response.forwards.items():
                # The first pass of each model reads the prompt.
                for tokens, seconds in zip(forwards.tokens[1:], forwards.calls[1:], strict=True):
                    times[role, tokens].append(seconds)
                    counts[gamma][role, tokens] += 1
            stats[gamma].append(response.stats)
            on_answer()
    median = {call: statistics.median(seconds) for call, seconds in times.items()}
    rows = []
    for gamma in gammas:
        calls, run = counts[gamma], joined(stats[gamma])
        draft, target = (sum(n for (who, _), n in calls.items() if who == role) for role in ("draft", "target"))
        seconds = sum(n * median[call] for call, n in calls.items())
        rows.append(DraftLengthCost(gamma, draft, target, len(run.trace), run.mean_accepted, seconds))
    return rows


app = command(windows)

if __name__ == "__main__":
    app()
