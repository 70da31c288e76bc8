"""SPRINTER's expected run length, and expected speedups by drafted tokens: ``python -m benchmarks.theory_plots``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hf_lossy_assist.cli.options import numbers
from hf_lossy_assist.theory import best_gamma, expected_speedup, sprinter_expected_run_length

from . import command

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Times = tuple[float, tuple[float, float], float]
"""Times of a draft forward, of a target forward and each of its tokens, and of a rule in a round."""

_TPRS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def main(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the two plots.")] = Path("theory"),
    r: Annotated[int, typer.Option(min=0, help="Acceptable tokens at the beginning of a SPRINTER run.")] = 5,
    fpr: Annotated[str, typer.Option(help="False-positive rates of its verifier.")] = "0.1,0.5",
    max_draft: Annotated[int | None, typer.Option(min=1, help="Bound on a SPRINTER run; none by default.")] = None,
    alpha: Annotated[str, typer.Option(help="Probabilities that a drafted token is kept.")] = "0.5,0.7,0.8,0.9",
    t_draft: Annotated[float, typer.Option(help="Time of a draft forward; any unit, the same for all times.")] = 0.05,
    t_target: Annotated[float, typer.Option(help="Time of a target forward, without the time per token.")] = 1.0,
    t_token: Annotated[float, typer.Option(help="Time per token of a target forward.")] = 0.0,
    t_head: Annotated[float, typer.Option(help="Time that the rule adds to a round.")] = 0.0,
    max_gamma: Annotated[int, typer.Option(min=1, help="The largest number of drafted tokens per round.")] = 16,
) -> None:
    """Tabulate and plot SPRINTER's expected run length by TPR, and the expected speedup by drafted tokens per round."""
    fprs, alphas = numbers("--fpr", fpr, float), numbers("--alpha", alpha, float)
    times = (t_draft, (t_target, t_token), t_head)
    tables = (run_length_table(r, fprs, max_draft), speedup_table(alphas, times, max_gamma))
    screen = Console()
    screen.print(*tables)

    out.mkdir(parents=True, exist_ok=True)
    figures = {
        "run_length.png": run_length_figure(r, fprs, max_draft),
        "speedup.png": speedup_figure(alphas, times, max_gamma),
    }
    for name, figure in figures.items():
        figure.savefig(out / name)
        screen.print(f"wrote {out / name}", highlight=False)


def run_length_table(r: int, fprs: Sequence[float], max_draft: int | None) -> Table:
    """Lay out SPRINTER's expected run length, one row for each TPR."""
    bound = "" if max_draft is None else f", at most {max_draft}"
    table = Table(title=f"Tokens committed per run, {r} acceptable ones first{bound}")
    for name in ("TPR", *(f"FPR {fpr:g}" for fpr in fprs)):
        table.add_column(name, justify="right")
    for tpr in _TPRS:
        lengths = (sprinter_expected_run_length(tpr, fpr, r, max_draft) for fpr in fprs)
        table.add_row(f"{tpr:g}", *(f"{length:.2f}" for length in lengths))
    return table


def speedup_table(alphas: Sequence[float], times: Times, max_gamma: int) -> Table:
    """Lay out the expected speedup, one row for each γ, and the best γ at the end."""
    table = Table(title="Expected speedup over the target alone", show_footer=True)
    table.add_column("γ", "best γ", justify="right")
    for alpha in alphas:
        best = str(best_gamma(alpha, *times, highest=max_gamma))
        table.add_column(f"α = {alpha:g}", best, justify="right")
    for gamma in range(1, max_gamma + 1):
        table.add_row(str(gamma), *(f"{expected_speedup(alpha, gamma, *times):.2f}" for alpha in alphas))
    return table


def run_length_figure(r: int, fprs: Sequence[float], max_draft: int | None) -> Figure:
    """Draw SPRINTER's expected run length against the verifier's TPR, as figure 5 of the paper does for r = 5."""
    figure, axes = _figure("verifier's true-positive rate", "expected run length (tokens)")
    tpr = np.linspace(0, 1, 201)
    for fpr in fprs:
        lengths = sprinter_expected_run_length(tpr, fpr, r, max_draft)
        axes.plot(tpr, np.where(np.isfinite(lengths), lengths, np.nan), label=f"FPR {fpr:g}")
    axes.axhline(r, color="grey", linewidth=0.8, linestyle="--", label=f"acceptable tokens (r = {r})")
    axes.set_title("SPRINTER: tokens committed per run (theorem 2)")
    axes.legend()
    return figure


def speedup_figure(alphas: Sequence[float], times: Times, max_gamma: int) -> Figure:
    """Draw the expected speedup against γ, one curve and a dot on its best γ for each α."""
    figure, axes = _figure("drafted tokens per round, γ", "expected speedup over the target alone")
    gammas = range(max_gamma + 1)
    for alpha in alphas:
        speedups = [expected_speedup(alpha, gamma, *times) for gamma in gammas]
        best = best_gamma(alpha, *times, highest=max_gamma)
        (line,) = axes.plot(gammas, speedups, label=f"α = {alpha:g}")
        axes.plot([best], [speedups[best]], "o", color=line.get_color())
    axes.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title("Speculative decoding: speed by window (dots: the best)")
    axes.legend()
    return figure


def _figure(x: str, y: str) -> tuple[Figure, Axes]:
    # pyplot would choose a backend for the whole process.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


app = command(main)

if __name__ == "__main__":
    app()
