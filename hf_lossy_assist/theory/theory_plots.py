"""The closed forms as pictures. Imports matplotlib, so nothing imports this module by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .rounds import Seconds, best_gamma, expected_speedup
from .sprinter_theory import sprinter_expected_run_length


def run_length_figure(r: int, fprs: Sequence[float], max_draft: int | None = None) -> Figure:
    """Draw SPRINTER's expected run length against the verifier's TPR, as figure 5 of the paper does for r = 5.

    Parameters
    ----------
    r
        How many acceptable tokens come first.
    fprs
        One curve for each false-positive rate.
    max_draft
        The bound on a run, if there is one.

    Examples
    --------
    >>> run_length_figure(5, (0.1, 0.5)).axes[0].get_xlabel()
    "verifier's true-positive rate"
    """
    figure, axes = _figure("verifier's true-positive rate", "expected run length (tokens)")
    tpr = np.linspace(0, 1, 201)
    for fpr in fprs:
        lengths = sprinter_expected_run_length(tpr, fpr, r, max_draft)
        axes.plot(tpr, np.where(np.isfinite(lengths), lengths, np.nan), label=f"FPR {fpr:g}")
    axes.axhline(r, color="grey", linewidth=0.8, linestyle="--", label=f"acceptable tokens (r = {r})")
    axes.set_title("SPRINTER: tokens committed per run (theorem 2)")
    axes.legend()
    return figure


def speedup_figure(alphas: Sequence[float], t_draft: float, t_target: Seconds, t_head: float, highest: int) -> Figure:
    """Draw the expected speedup against γ, one curve and a dot on its best γ for each α.

    Parameters
    ----------
    alphas
        Probabilities that a drafted token is kept.
    t_draft, t_target, t_head
        As in :func:`~hf_lossy_assist.theory.expected_speedup`.
    highest
        The largest γ.

    Examples
    --------
    >>> len(speedup_figure((0.5, 0.8), 0.1, 1.0, 0.0, highest=8).axes[0].lines)
    5
    """
    figure, axes = _figure("drafted tokens per round, γ", "expected speedup over the target alone")
    gammas = range(highest + 1)
    for alpha in alphas:
        speedups = [expected_speedup(alpha, gamma, t_draft, t_target, t_head) for gamma in gammas]
        best = best_gamma(alpha, t_draft, t_target, t_head, highest=highest)
        (line,) = axes.plot(gammas, speedups, label=f"α = {alpha:g}")
        axes.plot([best], [speedups[best]], "o", color=line.get_color())
    axes.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("Speculative decoding: speed by window (dots: the best)")
    axes.legend()
    return figure


def _figure(x: str, y: str):
    # No pyplot: it would choose a backend for the whole process.
    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes
