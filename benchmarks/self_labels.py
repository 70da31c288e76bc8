"""How well the target's likelihood tells which mismatches change the answer: ``python -m benchmarks.self_labels``.

Compares labels of ``mine --labels judge`` in the target's own text with the likelihoods that ``--labels self`` uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from sklearn.metrics import roc_auc_score

from benchmarks import command
from benchmarks.mined_labels import labels_of_mismatches
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import PairName, Threads, numbers
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.mining.manifest import Mined
from hf_lossy_assist.mining.prompt_results import Ids
from hf_lossy_assist.mining.self_labels import likelihood_changes

NAMES = ("tokens compared", "AUC", "most lost", "important (%)", "agree (%)", "change the answer, not found (%)")
COLUMNS = {name: itemgetter(i) for i, name in enumerate(NAMES)}

Places = dict[int, tuple[int, bool]]
"""The draft's token at each mismatch, and whether it changes the answer."""


def main(
    data: Annotated[Path, typer.Option(help="A folder of `mine --labels judge`.")],
    pair: PairName = "arithmetic",
    horizons: Annotated[str, typer.Option(help="Compared tokens after a mismatch, separated by commas.")] = "4,16,64",
    most_lost: Annotated[str, typer.Option(help="Nats per token, separated by commas.")] = "0.1,0.5,1",
    threads: Threads = None,
) -> None:
    """Print how labels by likelihood agree with labels by answers."""
    limit_threads(threads)
    lengths, losses = numbers("--horizons", horizons, int), numbers("--most-lost", most_lost, float)
    mined = labels_of_mismatches("--data", data)
    target = ModelOptions(pair, dtype=mined.manifest["settings"]["dtype"]["target"]).load().target
    texts, important = list(in_own_text(mined)), []
    changes: dict[int, list[float]] = {length: [] for length in lengths}
    screen = Console(soft_wrap=True)
    with progress(screen) as bar:
        for prompt, response, places in bar.track(texts, description="reading"):
            others = tuple(places[t][0] if t in places else -1 for t in range(len(response)))
            important += [matters for _, matters in places.values()]
            for length in lengths:
                changes[length] += likelihood_changes(target, prompt, response, list(places), others, length)
    labels = np.array(important)
    screen.print(
        table([row for n in lengths for row in rows_of(n, labels, np.array(changes[n]), losses)], COLUMNS, data.name)
    )
    screen.print(f"{len(labels)} mismatches of {len(texts)} prompts, {100 * labels.mean():.1f} % change the answer")


def in_own_text(mined: Mined) -> Iterator[tuple[Ids, Ids, Places]]:
    """Yield prompts and the target's responses, with the mismatches that come before any changed token."""
    found: dict[int, Places] = {}
    for row in mined.tokens.select_columns(["prompt_id", "index", "draft_token", "important"]):
        found.setdefault(row["prompt_id"], {})[row["index"]] = row["draft_token"], row["important"]
    for row in mined.prompts:
        first, last = row["first_response"] or [], row["last_response"] or []
        same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        places = {t: found[row["prompt_id"]][t] for t in sorted(found.get(row["prompt_id"], ())) if t <= same}
        if places:
            yield tuple(row["prompt_tokens"]), tuple(first), places


def rows_of(length: int, important: np.ndarray, changes: np.ndarray, losses: Sequence[float]) -> Iterator[list[str]]:
    """Yield a row of the table for each threshold; where nothing follows, the change is NaN."""
    auc = roc_auc_score(important, -np.nan_to_num(changes, nan=-1e9))
    for loss in losses:
        found = ~(changes >= -loss)
        shares = (found.mean(), (found == important).mean(), (important & ~found).mean())
        yield [str(length), f"{auc:.3f}", f"{loss:g}", *(f"{100 * share:.1f}" for share in shares)]


app = command(main)

if __name__ == "__main__":
    app()
