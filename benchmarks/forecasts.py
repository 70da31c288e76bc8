"""``python -m benchmarks.forecasts LABELS FOLDER…``: answers lost and won, predicted from labels and seen.

The prediction is that of ``advise --labels``, but for the tokens that a rule keeps of each answer: these are counted.
With the rows of ``rule_curves read`` for the same labels, judges are predicted too: out of fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.advice.outcomes import Labelled
from hf_lossy_assist.evaluation.answers import by_mode, load_answers
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.generation.config import LossyConfig

from . import PairName, command
from .rule_curves import Curves
from .rule_orders import Rows

OF_ROWS: dict[str, Callable[[Rows, Mapping[str, Any]], NDArray[np.bool_]]] = {
    "judge": lambda order, settings: order["judge"] > -settings["threshold"],
    "strict_words": lambda order, settings: (
        (order["fsd"] >= -settings["threshold"]) & (order["no digits or operators"] == 0)
    ),
}
"""What rules keep that read more than candidates' logits, by the orders of ``rule_curves`` and a mode's settings."""

Counts = dict[str, tuple[int, float, float, float]]


def forecasts(labels: Labelled, folder: Path, rows: Curves | None = None) -> Iterator[tuple[str, int, Counts]]:
    """Yield the rules of a folder, their problems, and for lost and won answers: seen, predicted, and its interval.

    The interval is one in which 95 % of counts lie: it has the labels' uncertainty, and the chance of each answer. How
    many of the answers of ``lossless`` are right is known. Rules that read states are left out without ``rows``.
    """
    plan, answers = load_answers(folder)
    modes, reference = by_mode(answers), plan["reference"]
    for label, config in plan["modes"].items():
        rule = config.get("lossy_mode")
        if label == reference or rule is None or config["temperature"] is not None:
            continue
        settings = dict(config["lossy_config"])
        if rule in OF_ROWS:
            kept = rows and OF_ROWS[rule](rows.order, settings).astype(float)
        elif config["heads"] or (acceptor := LossyConfig.from_fields(rule, settings).rule).is_lossless(do_sample=False):
            continue
        else:
            kept = labels.kept(acceptor, config["num_assistant_tokens"])
        own, before = modes.get(label, {}), modes[reference]
        ids = sorted(own.keys() & before.keys())
        if kept is None or not ids:
            continue
        solved, right = (np.array([each[i].score > 0 for i in ids]) for each in (before, own))
        found = labels.outcomes(kept, np.array([own[i].lossy for i in ids], dtype=float), solved)
        seen = {"lost": solved & ~right, "won": ~solved & right}
        yield label, len(ids), {x: (int(seen[x].sum()), *count_of(len(ids), *found[x])) for x in found}


def count_of(n: int, predicted: float, low: float, high: float) -> tuple[float, float, float]:
    """Return how many of ``n`` answers are predicted, by shares in percent, and an interval of the count.

    Examples
    --------
    >>> [round(x, 1) for x in count_of(100, 10.0, 10.0, 10.0)]  # the binomial's alone
    [10.0, 4.1, 15.9]
    """
    spread = math.hypot((high - low) / 100 * n / 3.92, math.sqrt(n * predicted / 100 * (1 - predicted / 100)))
    return n * predicted / 100, max(0.0, n * predicted / 100 - 1.96 * spread), n * predicted / 100 + 1.96 * spread


def main(
    labels: Annotated[Path, typer.Argument(help="A folder of `mine --labels judge`, or of `mined_labels restore`.")],
    folders: Annotated[list[Path], typer.Argument(help="Folders of `evaluate` whose reference is lossless.")],
    pair: PairName = "qwen-coder",
    dtype: Annotated[str, typer.Option(help="The weights' type.")] = "bfloat16",
    rows: Annotated[Path | None, typer.Option(help="What `rule_curves read` wrote of these labels.")] = None,
    threads: Threads = None,
) -> None:
    """Print answers lost and won of each rule, seen and predicted, and how many lie within their intervals."""
    limit_threads(threads)
    loaded = ModelOptions(pair, dtype=dtype).load()
    known = Labelled.read(labels, Models(loaded.target, loaded.draft))
    beside = rows and Curves.read(rows)
    if beside is not None and not np.array_equal(beside.examples.labels, known.important):
        raise LossyValueError(f"`rows` has to have the mismatches of `labels`, but {str(rows)!r} has others")
    typer.echo("| answers | rule | n | lost | predicted | won | predicted |\n|---|---|---|---|---|---|---|")
    inside: dict[str, list[bool]] = {}
    for folder in folders:
        for label, n, counts in forecasts(known, folder, beside):
            cells = [f"{seen} | {one:.1f} ({low:.1f} … {high:.1f})" for seen, one, low, high in counts.values()]
            typer.echo(f"| {folder.name} | `{label}` | {n} | {' | '.join(cells)} |")
            for name, (seen, _, low, high) in counts.items():
                inside.setdefault(name, []).append(low <= seen <= high)
    if not inside:
        raise LossyValueError("`folders` has to have greedy answers of rules beside `lossless`, but has none")
    typer.echo("")
    for name, own in inside.items():
        typer.echo(f"{sum(own)} of {len(own)} counts of answers {name} lie within their intervals")


app = command(main)

if __name__ == "__main__":
    app()
