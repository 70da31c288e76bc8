"""ROC curves as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve


@dataclass(frozen=True, eq=False)
class Curve:
    """A ROC curve, with its name for the legend (which adds the area) and matplotlib's style and colour of its line."""

    name: str
    labels: NDArray[np.bool_]
    probabilities: NDArray[np.floating]
    style: str = "-"
    color: str = "C0"


def draw_roc(curves: Sequence[Curve], path: Path, *, title: str, positive: str, others: str) -> None:
    """Draw ROC curves into one PNG; ``positive`` and ``others`` say what the shares on the axes are of.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> curve = Curve("validation", np.array([True, False]), np.array([0.9, 0.1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "roc.png"
    ...     draw_roc([curve], path, title="A judge", positive="found", others="kept back")
    ...     path.stat().st_size > 0
    True
    """
    # A figure of its own, without pyplot, which would choose a window system and keep every figure alive.
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    for curve in curves:
        false_rates, true_rates, _ = roc_curve(curve.labels, curve.probabilities)
        area = roc_auc_score(curve.labels, curve.probabilities)
        name = f"{curve.name} (AUC {area:.3f})"
        axes.plot(false_rates, true_rates, curve.style, color=curve.color, label=name)
    axes.set(title=title, xlabel=f"share of {others}", ylabel=f"share of {positive}", aspect="equal")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=120)
