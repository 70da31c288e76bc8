"""``python -m benchmarks.prices FOLDER``: the share f of refused tokens that each rule keeps, and what it costs.

``lossless`` accepts a drafted token with probability α₀, and a rule that keeps a share f of what it refuses with
α = α₀ + f (1 − α₀). Both follow from tokens per call at one γ, (1 − α^(γ+1)) / (1 − α). A rule's price is its loss of
points divided by f: what it would lose if it kept everything, and its choice were as good. The price of a kept token is
how many right answers of ``lossless`` are lost, by how many tokens the rule kept in these that ``lossless`` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.answers import Answer, by_mode, load_answers
from hf_lossy_assist.evaluation.quality import Interval, interval
from hf_lossy_assist.theory import expected_tokens_per_round

from . import command
from .quality_table import signed, times

_ALPHAS = np.linspace(0.0, 1.0, 10_001)


@dataclass(frozen=True)
class Price:
    """What a rule keeps and loses beside ``lossless``, on ``n`` problems, with intervals over these."""

    n: int
    share: Interval
    price: Interval
    lost: Interval | None  # right answers of ``lossless``, per 100 kept tokens; None if fewer than two of them have any


def price(own: Mapping[int, Answer], lossless: Mapping[int, Answer], gamma: int) -> Price:
    """Compare a rule with ``lossless`` on the problems of both; both draft ``gamma`` tokens a round.

    Examples
    --------
    >>> lossless = {i: Answer("lossless", i, 1.0, 150, 100, 50, None, "") for i in range(4)}
    >>> rule = {i: Answer("rule", i, float(i > 0), 175, 100, 75, None, "", lossy=2) for i in range(4)}
    >>> one = price(rule, lossless, gamma=1)  # a half and three quarters of the drafted tokens
    >>> round(one.share[0], 3), round(one.price[0], 1), round(one.lost[0], 1)
    (0.5, -50.0, 12.5)
    """
    ids = sorted(own.keys() & lossless.keys())
    pairs = [(own[i], lossless[i]) for i in ids]
    counts = [(x.tokens, x.rounds, y.tokens, y.rounds, 100 * (x.score - y.score), 1) for x, y in pairs]
    expected = np.asarray(expected_tokens_per_round(_ALPHAS, gamma), dtype=float)

    def share(sums: np.ndarray) -> np.ndarray:
        alpha, before = (np.interp(sums[..., i] / sums[..., i + 1], expected, _ALPHAS) for i in (0, 2))
        return (alpha - before) / (1 - before)

    values = np.array(counts, dtype=float)
    paid = interval(values, lambda sums: sums[..., 4] / sums[..., 5] / share(sums))
    solved = [(100.0 * (x.score <= 0), x.lossy) for x, y in pairs if y.score > 0]
    known = sum(kept > 0 for _, kept in solved) > 1
    lost = interval(solved) if known else None
    return Price(len(ids), interval(values, share), paid, lost)


def table(folder: Path) -> str:
    """Return the table of a folder of ``evaluate``.

    It has the rules that draft as many tokens as the reference, and of these the ones with the most problems.
    """
    plan, answers = load_answers(folder)
    modes, lossless = by_mode(answers), plan["reference"]
    gamma = plan["modes"][lossless].get("num_assistant_tokens")
    if gamma is None:
        raise LossyValueError(f"`folder` has to have a reference with a draft length, but {folder} has {lossless!r}")
    rules = [x for x, mode in plan["modes"].items() if x != lossless and mode.get("num_assistant_tokens") == gamma]
    found = {x: price(modes[x], modes[lossless], gamma) for x in rules if x in modes}
    lines = ["| rule | n | f | points / f | lost per 100 kept |", "|---|---|---|---|---|"]
    for rule, one in sorted(found.items(), key=lambda item: item[1].share):
        if one.n == max(x.n for x in found.values()):
            # A share that may be 0 has no price.
            cost, lost = (signed(one.price), times(one.lost)) if one.share[1] > 0 else ("", "")
            lines.append(f"| `{rule}` | {one.n} | {times(one.share)} | {cost} | {lost} |")
    return "\n".join(lines)


def main(folder: Annotated[Path, typer.Argument(help="A folder of `evaluate` whose reference is lossless.")]) -> None:
    """Print the share of refused tokens that each rule keeps, and its price."""
    typer.echo(table(folder))


app = command(main)

if __name__ == "__main__":
    app()
