"""The choices of DropMatch's dropped heads on a bundled pair: ``python -m benchmarks.dropout_tables``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hf_lossy_assist import pairs
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.options import Gamma, PairName, Threads, numbers
from hf_lossy_assist.evaluation import records

from . import command
from .dropout_choice import DROPOUTS, DropoutChoice, dropout_choices
from .dropped_heads import (
    CASES,
    Agreement,
    Divergence,
    PathAccuracy,
    agreements,
    divergences,
    own_texts,
    path_accuracies,
)


class Part(str, Enum):
    """What can be measured."""

    accuracy = "accuracy"
    agreement = "agreement"
    divergence = "divergence"
    choice = "choice"


def main(
    pair: PairName = "arithmetic",
    folder: Annotated[Path | None, typer.Option(help="Folder with `target` and `draft` to use instead.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Test problems for the tables.")] = 200,
    choice_problems: Annotated[int, typer.Option(min=1, help="Validation problems for the choice of ρ.")] = 100,
    dropouts: Annotated[str, typer.Option(help="Values of ρ for the tables.")] = "0.1,0.2,0.3,0.4,0.5",
    choice_dropouts: Annotated[str, typer.Option(help="Values of ρ to choose from.")] = ",".join(map(str, DROPOUTS)),
    paths: Annotated[int, typer.Option(min=1, help="K, the number of dropped heads.")] = 5,
    gamma: Gamma = 8,
    part: Annotated[list[Part] | None, typer.Option(help="Measure only this; may be given several times.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the dropout masks.")] = 0,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Measure tables 1 to 3 of the DropMatch paper on a bundled pair, and how ρ trades accuracy for kept tokens."""
    limit_threads(threads)
    rhos, choices = numbers("--dropouts", dropouts, float), numbers("--choice-dropouts", choice_dropouts, float)
    loaded = pairs.load(pair, folder=folder)
    target, parts, heads = loaded.target, set(part or Part), {"num_paths": paths, "seed": seed}
    screen = Console()
    origin = records.provenance(target.device, problems=problems, choice_problems=choice_problems, seed=seed)
    with progress(screen) as bar, records.written(out, origin) as write:

        def show(layout: Callable[[list[Any]], Table], rows: Iterable[Any], total: int, description: str) -> None:
            shown = []
            for row in bar.track(rows, total=total, description=description):
                write(row)
                shown.append(row)
            screen.print(layout(shown))

        if Part.accuracy in parts:
            alone = path_accuracies(loaded, rhos, problems=problems, **heads)
            show(path_table, alone, 1 + len(rhos) * paths, "each path alone")
        own = own_texts(loaded, problems) if {Part.agreement, Part.divergence} & parts else []
        if Part.agreement in parts:
            votes = (row for rho in rhos for row in agreements(target, own, rho, **heads))
            show(agreement_table, votes, len(rhos) * paths, "agreement")
        if Part.divergence in parts:
            cases = (row for rho in rhos for row in divergences(target, loaded.draft, own, rho, **heads))
            show(divergence_table, cases, len(rhos) * len(CASES), "divergence")
        if Part.choice in parts:
            runs = dropout_choices(loaded, choices, problems=choice_problems, gamma=gamma, **heads)
            show(choice_table, runs, 1 + 2 * len(choices), "end to end")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def path_table(rows: Sequence[PathAccuracy]) -> Table:
    """Lay out table 1 as in the paper: a row for each ρ, a column for each path."""
    plain, *dropped = rows
    paths = sorted({row.path for row in dropped})
    table = Table("ρ", *(f"path {path}" for path in paths), "mean", title="Accuracy (%) of each path alone")
    table.add_row("0 (undropped)", *[""] * len(paths), _percent(plain.accuracy))
    for dropout in dict.fromkeys(row.dropout for row in dropped):
        values = [row.accuracy for row in dropped if row.dropout == dropout]
        table.add_row(f"{dropout:g}", *map(_percent, values), _percent(sum(values) / len(values)))
    return table


def agreement_table(rows: Sequence[Agreement]) -> Table:
    """Lay out table 2: shares of positions, and the target's mean probability below."""
    votes = sorted({row.votes for row in rows})
    table = Table("ρ", "", *map(str, votes), title="How many paths agree on the majority token")
    for dropout in dict.fromkeys(row.dropout for row in rows):
        group = [row for row in rows if row.dropout == dropout]
        table.add_row(f"{dropout:g}", "share (%)", *(f"{100 * row.share:.2f}" for row in group))
        probabilities = ("–" if row.mean_probability is None else f"{row.mean_probability:.3f}" for row in group)
        table.add_row("", "mean p", *probabilities)
    return table


def divergence_table(rows: Sequence[Divergence]) -> Table:
    """Lay out table 3."""
    table = Table("ρ", "positions", "share (%)", "JS(q ‖ P̄)", "max JS(Pₖ ‖ P̄)", title="Divergence by criterion (nats)")
    for row in rows:
        share = f"{100 * row.share:.2f}"
        table.add_row(f"{row.dropout:g}", row.case, share, _number(row.draft_js), _number(row.path_js))
    return table


def choice_table(rows: Sequence[DropoutChoice]) -> Table:
    """Lay out accuracy and kept tokens over ρ."""
    columns = ("criterion", "ρ", "accuracy (%)", "mean accepted", "tokens per round", "accepted lossy (%)")
    table = Table(*columns, title="DropMatch end to end, validation problems")
    for row in rows:
        table.add_row(
            row.criterion if row.dropout else "lossless",
            f"{row.dropout:g}",
            _percent(row.accuracy),
            f"{row.mean_accepted:.2f}",
            f"{row.tokens_per_round:.2f}",
            _percent(row.accepted_lossy),
        )
    return table


app = command(main)

if __name__ == "__main__":
    app()
