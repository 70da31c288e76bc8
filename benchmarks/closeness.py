"""How well a token's likelihood tells which mismatches matter: ``python -m benchmarks.closeness``.

Rules without training decide by such quantities alone. A judge reads states instead; its AUC is on its card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks import PairName, command, numbers
from benchmarks.mined_labels import labels_of_mismatches
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.core.distributions import entropy
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.mining.mining_run import Mined
from hf_lossy_assist.training.crossing import cross
from hf_lossy_assist.training.examples import Examples, read_judged
from hf_lossy_assist.training.judge_training import STRENGTHS, regressions
from hf_lossy_assist.training.validation import area_of, auc_interval, deal

AUCS = {name: itemgetter(i) for i, name in enumerate(("quantity", "AUC", "from", "to"))}
SHARES = {name: itemgetter(i) for i, name in enumerate(("nats below the best token", "mismatches", "important (%)"))}
_ROWS = 128


def closeness(logits: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Return quantities ``(N,)`` of drafted ``tokens`` ``(N,)`` under the target's ``logits`` ``(N, V)``.

    All of them are larger where a rule would rather refuse the token.

    Examples
    --------
    >>> p = torch.tensor([[0.5, 0.25, 0.25]])
    >>> {name: round(x.item(), 3) for name, x in closeness(p.log(), torch.tensor([1])).items()}
    {'max z - z(x)': 0.693, '-log p(x)': 1.386, '-log max p': 0.693, 'entropy of p': 1.04}
    """
    log_p = logits.float().log_softmax(-1)
    own, best = log_p.gather(-1, tokens[:, None])[:, 0], log_p.amax(-1)
    return {
        "max z - z(x)": best - own, "-log p(x)": -own, "-log max p": -best, "entropy of p": entropy(log_p.exp()),
    }  # fmt: skip


def main(
    data: Annotated[Path, typer.Option(help="A folder of `mine --labels judge`.")],
    pair: PairName = "qwen-coder",
    edges: Annotated[str, typer.Option(help="Edges between shares, in nats, separated by commas.")] = "0.69,1.5,3,5",
    together: Annotated[
        bool, typer.Option("--together", help="Also judge by these quantities, by the state, and by both, out of fold.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Print the AUC of each quantity, and the share of important mismatches by the distance to the best token."""
    limit_threads(threads)
    bounds = numbers("--edges", edges, float)
    mined = labels_of_mismatches("--data", data)
    columns = ["target_previous", "draft_token", "important", "prompt_id"]
    labels = mined.tokens.select_columns(columns).with_format("numpy")[:]
    target = ModelOptions(pair, dtype=mined.manifest["settings"]["dtype"]["target"]).load().target
    head = target.get_output_embeddings()
    states = torch.from_numpy(labels["target_previous"]).to(head.weight)
    tokens = torch.from_numpy(labels["draft_token"]).to(head.weight.device, torch.long)
    screen = Console(soft_wrap=True)
    with torch.inference_mode(), progress(screen) as bar:
        batches = list(zip(states.split(_ROWS), tokens.split(_ROWS), strict=True))
        found = [closeness(head(batch), own) for batch, own in bar.track(batches, description="reading")]
    values = {name: torch.cat([part[name] for part in found]).cpu().numpy() for name in found[0]}
    important, prompts = labels["important"].astype(bool), labels["prompt_id"]
    rows = []
    for name, x in values.items():
        area, (low, high) = roc_auc_score(important, x), auc_interval(important, x, prompts)
        rows.append((name, f"{area:.3f}", f"{low:.3f}", f"{high:.3f}"))
    screen.print(table(rows, AUCS, data.name))
    distance, ends = values["max z - z(x)"], [0.0, *bounds, float("inf")]
    shares = []
    for low, high in pairwise(ends):
        within = (distance >= low) & (distance < high)
        share = f"{100 * important[within].mean():.1f}" if within.any() else ""
        shares.append((f"{low:g} to {high:g}", str(within.sum()), share))
    screen.print(table(shares, SHARES, "all mismatches"))
    if together:
        found = beside(read_judged(data, ["target_previous", "target_draft"]).examples, [*values.values()], mined)
        screen.print(table(found, AUCS, "logistic regressions, out of fold"))


def beside(examples: Examples, values: Sequence[NDArray[np.floating]], mined: Mined) -> list[tuple[str, ...]]:
    """Return the AUCs of logistic regressions on quantities, on states, and on both, by problem."""
    places = mined.tokens.with_format("numpy")["index"][:]
    states = {**examples.states, "quantities": np.stack([*values, places], axis=1).astype(np.float32)}
    both = replace(examples, states=states)
    folds, rows = deal(both.labels, both.prompts), []
    for state in ("quantities", "target_previous", "target_draft"):
        for columns in ([state], [state, "quantities"])[: 1 + (state != "quantities")]:
            scores = cross(regressions(STRENGTHS), columns, both, folds).probabilities
            areas = {"": area_of(both, scores, seed=0)}
            if both.solved is not None:
                right = both.where(both.solved)
                areas[", solved"] = area_of(right, scores[both.solved], seed=0)
            rows += [
                (" and ".join(columns) + name, *(f"{value:.3f}" for value in area.values()))
                for name, area in areas.items()
            ]
    return rows


app = command(main)

if __name__ == "__main__":
    app()
