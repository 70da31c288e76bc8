"""The picture of advice: speed against loss, draft length and the draft's cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..modes import EVERYTHING
from .advice import Advice

PLOTTED_COSTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""The costs of a drafted token, as shares of a token of the target, that are drawn."""


def draw(advice: Advice, path: Path) -> None:
    """Draw the advice into a PNG file with three parts; the third shows each rule at its best draft length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    loss, lengths, costs = figure.subplots(1, 3)
    known = [row for row in advice.rows if row.mode != EVERYTHING and row.loss is not None]
    for row in known:
        below, above = row.times_lossless - row.low, row.high - row.times_lossless
        loss.errorbar(row.loss, row.times_lossless, [[below], [above]], fmt="o", capsize=2, elinewidth=0.6)
        loss.annotate(f" {row.mode}@{row.gamma}", (row.loss, row.times_lossless), fontsize=7)
    front = sorted(advice.front, key=lambda row: row.loss)
    loss.plot([row.loss for row in front], [row.times_lossless for row in front], color="black", linewidth=0.8)
    loss.set(xlabel="KL to the target, per position" if advice.sampled else "nats given up, per token")
    others = [advice.with_draft_cost(share) for share in PLOTTED_COSTS]
    for one in advice.replayed:
        rows = [advice.row(one, gamma) for gamma in sorted(one.walks.keys() - {"auto"})]
        gammas = [row.gamma for row in rows]
        (line,) = lengths.plot(gammas, [row.times_lossless for row in rows], label=one.mode.label)
        lengths.fill_between(gammas, *np.array([[x.low, x.high] for x in rows]).T, alpha=0.1, color=line.get_color())
        costs.plot(PLOTTED_COSTS, [other.row(one).times_lossless for other in others], color=line.get_color())
    lengths.set(xlabel="drafted tokens per round")
    costs.axvline(advice.draft_cost, color="black", linewidth=0.8, linestyle="--")
    costs.set(xlabel="a drafted token's time / a token's of the target (dashed: here)", xscale="log")
    for axes in (loss, lengths, costs):
        axes.set_ylabel("× the best lossless setting")
        axes.grid(alpha=0.3)
    figure.legend(*lengths.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=110)
