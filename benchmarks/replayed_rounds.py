"""``python -m benchmarks.replayed_rounds``: what ``advise`` predicts beside what the loop itself keeps, rule by rule.

Every rule answers the same prompts with every draft length. A cell is right if zero lies within the 95 % interval of
the difference between both means of kept tokens per round, with an interval over prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks import PairName, command, numbers
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import LoadedModels, ModelOptions
from hf_lossy_assist.cli.options import Assistant, Threads
from hf_lossy_assist.evaluation.advice.advising import Advising, target_alone
from hf_lossy_assist.evaluation.modes import Models, usual_modes
from hf_lossy_assist.evaluation.quality import interval_of_sums
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.store.folder import append_lines, read_lines

MORE = "margin:gap=1.0,relaxed:top_n=2:delta=0.2,cactus:delta=1.0,ears:beta=1.0,everything"
COLUMNS = {
    name: itemgetter(i) for i, name in enumerate(("rule", "γ", "predicted", "seen", "error\n(%)", "95 %", "right"))
}


def main(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="A file of cells; those that it has are not measured again.")
    ],
    pair: PairName = "arithmetic",
    assistant: Assistant = None,
    prompt_lookup: Annotated[
        int | None, typer.Option(min=1, help="Look so many tokens up first; without --assistant, nothing else drafts.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=2, help="Number of prompts.")] = 100,
    gammas: Annotated[str, typer.Option(help="Draft lengths.")] = "2,5,8,16",
    batch: Annotated[int, typer.Option(min=1, help="Prompts that are answered together.")] = 50,
    modes: Annotated[str | None, typer.Option(help="Rules, as for evaluate; all of them by default.")] = None,
    drawn: Annotated[bool, typer.Option(help="Whether to compare drawn tokens, too.")] = True,
    threads: Threads = None,
) -> None:
    """Compare predicted with seen tokens, greedily and drawn at temperature 1; print every cell, and the summary."""
    limit_threads(threads)
    screen, loaded = Console(soft_wrap=True), ModelOptions(pair, None, assistant, prompt_lookup=prompt_lookup).load()
    models = replace(loaded.models, lookup=prompt_lookup or 0)
    done = {(cell["drawn"], cell["mode"], cell["gamma"]): cell for _, cell in read_lines(out)}
    with progress(screen) as bar:
        for temperature in (None, 1.0)[: 1 + drawn]:
            lengths = numbers("--gammas", gammas, int)
            for cell in cells(loaded, models, temperature, prompts, lengths, batch, modes, done, bar):
                append_lines(out, [cell])
                done[cell["drawn"], cell["mode"], cell["gamma"]] = cell
    for kind in (False, True):
        rows = [row_of(cell) for cell in done.values() if cell["drawn"] == kind]
        screen.print(table(rows, COLUMNS, "drawn at temperature 1" if kind else "greedy"))
    errors = np.array([difference(cell) for cell in done.values()])
    screen.print(
        f"{len(errors)} cells: {np.mean((errors[:, 1] <= 0) & (errors[:, 2] >= 0)):.1%} right; relative error "
        f"{np.abs(errors[:, 0]).mean():.2%} in the mean, {np.abs(errors[:, 0]).max():.2%} at worst"
    )


def cells(
    loaded: LoadedModels, models: Models, temperature: float | None, count: int, gammas: list[int], size: int,
    modes: str | None, done: Mapping[tuple[bool, str, int], Any], bar: Any,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the cells that are missing: rounds and kept tokens by prompt, of the replay and of the loop."""
    prompts, limit = loaded.encode(loaded.task.examples("test", count)), loaded.task.max_new_tokens
    names = [mode.label for mode in usual_modes({}, 5, temperature) if mode.label != "dropmatch"]
    spelt = modes or ",".join([*names, MORE])
    answers = target_alone(models, loaded.tokenizer, loaded.task, limit=count, temperature=temperature)
    advising = Advising(answers, spelt, tuple(gammas), track=bar.track)
    sampled = temperature is not None
    own = [(mode, rule) for mode, rule in advising.rules if mode.label == "lossless" or not rule.is_lossless(sampled)]
    for mode, rule in bar.track(own, description="drawn" if temperature else "greedy"):
        missing = [gamma for gamma in gammas if (sampled, mode.label, gamma) not in done]
        walks = advising.replay(mode, rule).walks if missing else {}
        for gamma in missing:
            work = []
            for together in batches_of(prompts, size, pad=loaded.tokenizer.pad_token_id, seed=1000):
                work += run_request(models, replace(mode, gamma=gamma), together, limit).work
            rounds, kept, _ = (list(column) for column in zip(*work, strict=True))
            yield {
                "drawn": sampled, "mode": mode.label, "gamma": gamma,
                "predicted": [walks[gamma].rounds.tolist(), walks[gamma].kept.tolist()], "seen": [rounds, kept],
            }  # fmt: skip


def difference(cell: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return by which share kept tokens per round are predicted too high, with the interval.

    Examples
    --------
    >>> difference({"predicted": [[10, 10], [21, 21]], "seen": [[10, 10], [20, 20]]})[0]
    0.05
    """
    counts = np.array([*cell["predicted"], *cell["seen"]], dtype=float)
    error, low, high = interval_of_sums(counts.T, lambda s: (s[:, 1] / s[:, 0]) / (s[:, 3] / s[:, 2]) - 1)
    return round(error, 9), low, high


def row_of(cell: Mapping[str, Any]) -> list[str]:
    error, low, high = difference(cell)
    means = [f"{sum(kept) / sum(rounds):.2f}" for rounds, kept in (cell["predicted"], cell["seen"])]
    interval = f"{100 * low:+.1f} to {100 * high:+.1f}"
    return [
        cell["mode"],
        str(cell["gamma"]),
        *means,
        f"{100 * error:+.1f}",
        interval,
        "yes" if low <= 0 <= high else "",
    ]


app = command(main)

if __name__ == "__main__":
    app()
