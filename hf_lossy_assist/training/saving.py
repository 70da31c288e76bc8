"""Saving of trained heads with their ROC curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from ..heads import Head
from ..heads.repository import ROC


@dataclass(frozen=True, eq=False)
class Curve:
    """A ROC curve, with its name in the legend and matplotlib's style and colour."""

    name: str
    labels: NDArray[np.bool_]
    probabilities: NDArray[np.floating]
    style: str = "-"
    color: str = "C0"


def save_with_roc(head: Head, folder: Path, curves: Sequence[Curve], *, positive: str, others: str) -> None:
    """Write a head, its model card and its ROC curves into ``folder``.

    ``positive`` and ``others`` complete the axes' labels, e.g. ``"important tokens found"``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Without pyplot, which would choose a window system and keep every figure alive.
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    for curve in curves:
        false_rates, true_rates, _ = roc_curve(curve.labels, curve.probabilities)
        name = f"{curve.name} (AUC {roc_auc_score(curve.labels, curve.probabilities):.3f})"
        axes.plot(false_rates, true_rates, curve.style, color=curve.color, label=name)
    title = f"{head.config.kind.capitalize()} head for {head.config.task}"
    axes.set(title=title, xlabel=f"share of {others}", ylabel=f"share of {positive}", aspect="equal")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(folder / ROC, dpi=120)
    head.save_pretrained(folder)  # the card shows the plot if it is there
