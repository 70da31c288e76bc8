"""``python -m benchmarks.forecasts LABELS FOLDER…``: answers lost and won, predicted from labels and seen.

The prediction is that of ``advise --labels``, but for the tokens that a rule keeps of each answer: these are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.advice.outcomes import Labelled
from hf_lossy_assist.evaluation.answers import by_mode, load_answers
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.generation.config import LossyConfig

from . import PairName, command


def forecasts(labels: Labelled, folder: Path) -> Iterator[tuple[str, int, list[tuple[int, float, float, float]]]]:
    """Yield the rules of a folder, their problems, and for lost and won answers: seen, predicted, and its interval.

    The interval is one in which 95 % of counts lie: it has the labels' uncertainty, and the chance of each answer.
    Rules that read states are left out, as by ``advise``.
    """
    plan, answers = load_answers(folder)
    modes, reference = by_mode(answers), plan["reference"]
    for label, config in plan["modes"].items():
        rule, gamma = config.get("lossy_mode"), config.get("num_assistant_tokens")
        if label == reference or rule is None or config["heads"] or config["temperature"] is not None:
            continue
        acceptor = LossyConfig.from_fields(rule, dict(config["lossy_config"])).rule
        kept = labels.kept(acceptor, gamma)
        own, before = modes.get(label, {}), modes[reference]
        ids = sorted(own.keys() & before.keys())
        if kept is None or not ids or acceptor.is_lossless(do_sample=False):
            continue
        solved, right = (np.array([each[i].score > 0 for i in ids]) for each in (before, own))
        found = labels.outcomes(kept, np.array([own[i].lossy for i in ids], dtype=float), solved)
        rows = []
        for name, seen in (("lost", solved & ~right), ("won", ~solved & right)):
            if name in found:
                rows.append((int(seen.sum()), *count_of(len(ids), *found[name])))
        yield label, len(ids), rows


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
    threads: Threads = None,
) -> None:
    """Print answers lost and won of each rule, seen and predicted, and how many lie within their intervals."""
    limit_threads(threads)
    loaded = ModelOptions(pair, dtype=dtype).load()
    known = Labelled.read(labels, Models(loaded.target, loaded.draft))
    typer.echo("| answers | rule | n | lost | predicted | won | predicted |\n|---|---|---|---|---|---|---|")
    inside = []
    for folder in folders:
        for label, n, rows in forecasts(known, folder):
            cells = [f"{seen} | {one:.1f} ({low:.1f} … {high:.1f})" for seen, one, low, high in rows]
            typer.echo(f"| {folder.name} | `{label}` | {n} | {' | '.join(cells)} |")
            inside += [low <= seen <= high for seen, _, low, high in rows]
    if not inside:
        raise LossyValueError("`folders` has to have greedy answers of rules beside `lossless`, but has none")
    typer.echo(f"\n{sum(inside)} of {len(inside)} counts lie within their intervals")


app = command(main)

if __name__ == "__main__":
    app()
