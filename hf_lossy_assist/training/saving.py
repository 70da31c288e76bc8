"""Saving of trained heads: the origin of their labelled states for the configuration, and their ROC curves."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from .. import pairs
from ..compat import versions_of
from ..errors import LossyValueError
from ..heads import Head, ModelIdentity
from ..heads.identity import differing_models
from ..heads.repository import ROC
from ..store.folder import without_folder, without_folders
from ..version import __version__

_PACKAGES = ("torch", "transformers", "scikit-learn", "numpy")


@dataclass(frozen=True)
class Origin:
    """The models, the task and the data that labelled states come from.

    ``card`` has further entries of the provenance for the model card, such as ``license`` or ``pair``.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def with_card(self, license: str | None, pair: str | None) -> Origin:
        """Add a license and the name of a bundled pair for the card; refuse a pair that the data do not come from."""
        card: dict[str, Any] = {} if license is None else {"license": license}
        if pair is not None:
            loaded = pairs.load(pair)
            if found := differing_models(vars(self), {"target": loaded.target, "draft": loaded.draft}):
                raise LossyValueError(
                    f"`pair` has to be the pair that the data come from, but {pair!r} differs: {'; '.join(found)}"
                )
            card["pair"] = pair
        return replace(self, card=card)

    def config_fields(self, settings: Mapping[str, Any], **notes: Any) -> dict[str, Any]:
        """Return the fields of a head's configuration about its models, its task and its training."""
        versions = {"hf_lossy_assist": __version__, "Python": platform.python_version()}
        record = {
            **self.card,
            "command": shlex.join(["lossy-assist", *map(without_folder, sys.argv[1:])]),  # for cards
            "argv": ["lossy-assist", *sys.argv[1:]],
            "versions": versions | versions_of(*_PACKAGES),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": self.data,
            "training": {**settings, **notes},
        }
        # As JSON reads it, so that a loaded head equals the saved one.
        provenance = without_folders(json.loads(json.dumps(record)))
        return {"target": self.target, "draft": self.draft, "task": self.task, "provenance": provenance}


@dataclass(frozen=True, eq=False)
class Curve:
    """A ROC curve, with its name in the legend and matplotlib's style and colour; ``weights`` are those of examples."""

    name: str
    labels: NDArray[np.bool_]
    probabilities: NDArray[np.floating]
    weights: NDArray[np.floating] | None = None
    style: str = "-"
    color: str = "C0"


def save_with_roc(head: Head, folder: Path, curves: Sequence[Curve], *, positive: str, others: str) -> None:
    """Write a head, its model card and its ROC curves into ``folder``.

    ``positive`` and ``others`` complete the axes' labels, e.g. ``"important tokens found"``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Without pyplot, which would choose a window system and keep every figure alive.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    for curve in curves:
        points = {"y_true": curve.labels, "y_score": curve.probabilities, "sample_weight": curve.weights}
        false_rates, true_rates, _ = roc_curve(**points)
        name = f"{curve.name} (AUC {roc_auc_score(**points):.3f})"
        axes.plot(false_rates, true_rates, curve.style, color=curve.color, label=name)
    title = f"{head.config.kind.capitalize()} head for {head.config.task}"
    axes.set(title=title, xlabel=f"share of {others}", ylabel=f"share of {positive}", aspect="equal")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(folder / ROC, dpi=120)
    head.save_pretrained(folder)  # the card shows the plot if it is there
