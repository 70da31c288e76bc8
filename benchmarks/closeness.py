"""How well a token's likelihood tells which mismatches matter: ``python -m benchmarks.closeness``.

Rules without training decide by such quantities alone. A judge reads states instead; its AUC is on its card.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from torch import Tensor

from benchmarks import PairName, command, numbers
from benchmarks.mined_labels import labels_of_mismatches
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.core.distributions import entropy
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.training.examples import Examples, joined, read_judged
from hf_lossy_assist.training.judge_training import STRENGTHS, regressions
from hf_lossy_assist.training.validation import area_of, both_classes, cross, deal, fit, gain_of

AUCS = {name: itemgetter(i) for i, name in enumerate(("quantity", "AUC", "from", "to"))}
SHARES = {name: itemgetter(i) for i, name in enumerate(("nats below the best token", "mismatches", "important (%)"))}
_ROWS = 128


def closeness(logits: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Return quantities ``(N,)`` of drafted ``tokens`` ``(N,)`` under the target's ``logits`` ``(N, V)``.

    All of them are larger where a rule would rather refuse the token.

    Examples
    --------
    >>> p = torch.tensor([[0.5, 0.25, 0.25]])
    >>> for name, x in closeness(p.log(), torch.tensor([1])).items():
    ...     print(name, round(x.item(), 3))
    max z - z(x) 0.693
    -log p(x) 1.386
    -log max p 0.693
    entropy of p 1.04
    rank of x 1.0
    margin 0.693
    """
    log_p = logits.float().log_softmax(-1)
    own, (best, second) = log_p.gather(-1, tokens[:, None]), log_p.topk(2).values.unbind(-1)
    return {
        "max z - z(x)": best - own[:, 0],
        "-log p(x)": -own[:, 0],
        "-log max p": -best,
        "entropy of p": entropy(log_p.exp()),
        "rank of x": (log_p > own).sum(-1).float(),  # 0 for the best token
        "margin": best - second,
    }


def main(
    data: Annotated[Path, typer.Option(help="A folder of `mine --labels judge`.")],
    pair: PairName = "qwen-coder",
    edges: Annotated[str, typer.Option(help="Edges between shares, in nats, separated by commas.")] = "0.69,1.5,3,5",
    together: Annotated[
        bool, typer.Option("--together", help="Also judge by these quantities, by the state, and by both, out of fold.")
    ] = False,
    other: Annotated[
        Path | None, typer.Option(help="Also judge by heads of this folder, of other problems; needs --together.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Print the AUC of each quantity, and the share of important mismatches by the distance to the best token."""
    if other is not None and not together:
        raise LossyValueError("`--other` needs `--together`")
    limit_threads(threads)
    bounds = numbers("--edges", edges, float)
    mined = labels_of_mismatches("--data", data)
    labels = mined.tokens.select_columns(["target_previous", "draft_token"]).with_format("numpy")[:]
    target = ModelOptions(pair, dtype=mined.manifest["settings"]["dtype"]["target"]).load().target
    head = target.get_output_embeddings()
    states = torch.from_numpy(labels["target_previous"]).to(head.weight)
    tokens = torch.from_numpy(labels["draft_token"]).to(head.weight.device, torch.long)
    screen = Console(soft_wrap=True)
    with torch.inference_mode(), progress(screen) as bar:
        batches = list(zip(states.split(_ROWS), tokens.split(_ROWS), strict=True))
        found = [closeness(head(batch), own) for batch, own in bar.track(batches, description="reading")]
    values = {name: torch.cat([part[name] for part in found]).cpu().numpy() for name in found[0]}
    examples = read_judged(data, None if together else ()).examples
    screen.print(table([row for name, x in values.items() for row in _rows(name, examples, x)], AUCS, data.name))
    distance, ends = values["max z - z(x)"], [0.0, *bounds, float("inf")]
    shares = []
    for low, high in pairwise(ends):
        within = (distance >= low) & (distance < high)
        some = examples.where(within)
        share = f"{100 * np.average(some.labels, weights=some.weights):.1f}" if len(some) else ""
        shares.append((f"{low:g} to {high:g}", str(within.sum()), share))
    screen.print(table(shares, SHARES, "all mismatches"))
    if together:
        quantities = np.stack([*values.values(), mined.tokens.with_format("numpy")["index"][:]], axis=1)
        others = () if other is None else across(examples, read_judged(other).examples)
        screen.print(table([*beside(examples, quantities), *fewer(examples), *others], AUCS, "logistic regressions"))


def _rows(name: str, examples: Examples, scores: NDArray[np.floating]) -> Iterator[tuple[str, ...]]:
    yield name, *(f"{value:.3f}" for value in area_of(examples, scores, seed=0).values())
    if examples.solved is not None and not examples.solved.all() and both_classes(examples.labels[examples.solved]):
        yield from _rows(f"{name}, solved", examples.where(examples.solved), scores[examples.solved])


def beside(examples: Examples, quantities: NDArray[np.floating]) -> Iterator[tuple[str, ...]]:
    """Yield the AUCs of regressions on quantities and places ``(N, k)``, on states, and on both, out of fold."""
    both = replace(examples, states={**examples.states, "quantities": quantities.astype(np.float32)})
    folds = deal(both)
    for columns in (["quantities"], *(x for state in examples.states for x in ([state], [state, "quantities"]))):
        scores = cross(regressions(STRENGTHS), columns, both, folds).probabilities
        yield from _rows(" and ".join(columns), both, scores)


def fewer(examples: Examples) -> Iterator[tuple[str, ...]]:
    """Yield the AUCs of regressions that see some of the labels only, out of fold on all of them."""
    rng, folds = np.random.default_rng(0), deal(examples)
    order = rng.permutation(len(examples))
    place = np.empty(len(examples), dtype=int)  # of each label among its prompt's, in a random order
    for prompt in np.unique(examples.prompts):
        own = order[examples.prompts[order] == prompt]
        place[own] = np.arange(len(own))
    seen = {f"{most} labels a prompt": place < most for most in (4, 8, 16)}
    if examples.solved is not None and not examples.solved.all():
        seen["prompts that the target solves"] = examples.solved
    for name, chosen in seen.items():
        some = replace(examples, weights=examples.weights * chosen)
        scores = cross(regressions(STRENGTHS), ["target_previous"], some, folds).probabilities
        yield from _rows(f"a head of {name}", examples, scores)


def across(examples: Examples, other: Examples) -> Iterator[tuple[str, ...]]:
    """Yield the AUCs on examples by a head of ``other`` ones, and out of fold by heads of both.

    The last row is the AUC by heads of both less that by heads of the examples alone.
    """
    columns, grid = ["target_previous"], regressions(STRENGTHS)
    head = fit(cross(grid, columns, other, deal(other)).chosen, columns, other)
    yield from _rows("a head of the other data", examples, head.predict_proba(examples.features(columns))[:, 1])
    # The other data are a fold of their own, so every fold of the examples is judged by a head that has seen them.
    dealt = deal(examples)
    folds = np.concatenate([dealt, np.full(len(other), -1)])
    both = cross(grid, columns, joined([examples, other]), folds).probabilities[: len(examples)]
    yield from _rows("heads of both", examples, both)
    own = cross(grid, columns, examples, dealt).probabilities
    yield "heads of both, less own", *(f"{value:+.3f}" for value in gain_of(examples, both, own, 0))


app = command(main)

if __name__ == "__main__":
    app()
