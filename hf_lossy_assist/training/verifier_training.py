"""Training of verifier heads from ratios of probabilities."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn

from ..errors import LossyValueError
from ..heads import VerifierConfig, VerifierHead, VerifierRow, fold
from ..heads.verifier_head import POSITIONS
from ..values import POSITIVE, Checked, Probability, Rule
from .examples import Origin, Ratios, check
from .validation import (
    RECALLS,
    Curve,
    area_of,
    auc_of,
    better,
    both_classes,
    cross,
    deal,
    fit,
    largest_threshold,
    learning_curve,
    rates,
    save_with_roc,
    validation_mask,
)


class AdamLayer(ClassifierMixin, BaseEstimator):
    """A linear layer and a sigmoid, by binary cross-entropy and Adam, as a classifier of scikit-learn.

    SPRINTER, appendix A.5: the fit stops early on a fifth of the prompts. It stops after ``patience`` epochs without a
    lower loss there, at the latest after ``max_epochs``, and returns to the epoch with the lowest. With ``epochs`` it
    makes that many passes over all prompts, and holds none out. ``seed`` determines the held-out prompts and the order
    of the tokens.
    """

    def __init__(
        self,
        learning_rate: float = 1e-3,
        batch: int = 256,
        patience: int = 10,
        max_epochs: int = 300,
        epochs: int | None = None,
        seed: int = 0,
    ) -> None:
        self.learning_rate, self.batch, self.patience = learning_rate, batch, patience
        self.max_epochs, self.epochs, self.seed = max_epochs, epochs, seed

    def fit(self, X: NDArray[np.floating], y: NDArray[np.bool_], groups: NDArray[np.int64]) -> Self:
        """Fit to states ``(N, d)`` and labels ``(N,)`` of the prompts ``groups`` ``(N,)``."""
        self.classes_ = np.array([False, True])
        held_out = np.zeros(len(y), dtype=bool)
        if self.epochs is None:
            held_out = validation_mask(y, groups, seed=self.seed)
        states, labels = torch.from_numpy(X).float(), torch.from_numpy(y).float()
        sides = [(states[mask], labels[mask]) for mask in (torch.from_numpy(~held_out), torch.from_numpy(held_out))]
        layer, self.epochs_ = self._descend(*sides)
        self.coef_, self.intercept_ = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        return self

    def _descend(self, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor]) -> tuple[nn.Linear, int]:
        """Return the layer with the lowest loss on the held-out side, and its epoch."""
        generator = torch.Generator().manual_seed(self.seed)
        layer = nn.Linear(train[0].shape[1], 1, dtype=torch.float32)
        # The loss is convex, so zeros are as good a start as any.
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        loss_of = nn.BCEWithLogitsLoss()
        adam = torch.optim.Adam(layer.parameters(), lr=self.learning_rate)
        lowest, kept, kept_epoch = float("inf"), copy.deepcopy(layer), 0
        for epoch in range(1, 1 + (self.max_epochs if self.epochs is None else self.epochs)):
            for batch in torch.randperm(len(train[1]), generator=generator).split(self.batch):
                adam.zero_grad()
                loss_of(layer(train[0][batch]).squeeze(-1), train[1][batch]).backward()
                adam.step()
            if self.epochs is not None:
                kept, kept_epoch = layer, epoch
                continue
            with torch.no_grad():
                loss = loss_of(layer(held_out[0]).squeeze(-1), held_out[1]).item()
            if loss < lowest:
                lowest, kept, kept_epoch = loss, copy.deepcopy(layer), epoch
            if epoch - kept_epoch >= self.patience:
                break
        return kept, kept_epoch

    def predict_proba(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the probabilities ``(N, 2)`` of False and True."""
        true = expit(X @ self.coef_[0] + self.intercept_)
        return np.stack([1 - true, true], axis=1)


RATIOS = (1.0, 1.2, 1.5)
"""The λ of the paper's figure 9."""


@dataclass(frozen=True)
class VerifierSettings(Checked):
    """Settings for training a verifier head."""

    # λ: a token is acceptable iff q(x) / p(x) <= λ; the paper's theorems assume 1.
    ratio: Annotated[float, POSITIVE] = 1.0
    # The state to read; None: the better one out of fold.
    position: Annotated[str | None, Rule(f"one of {[*POSITIONS]} or None", (*POSITIONS, None).__contains__)] = None
    threshold: Probability = 0.5  # a token is committed iff the head's probability is above it
    # The share of acceptable tokens that has to be committed, out of fold: chooses the threshold.
    recall: Annotated[float | None, Rule("above 0 and at most 1, or None", lambda x: x is None or 0 < x <= 1)] = None
    layer: AdamLayer = field(default_factory=AdamLayer)
    seed: int = 0  # of the folds

    @property
    def positions(self) -> tuple[str, ...]:
        return POSITIONS if self.position is None else (self.position,)


@dataclass(frozen=True, eq=False)
class TrainedVerifier:
    """A verifier head, fitted to all prompts, with the curves out of fold of each λ at its position."""

    head: VerifierHead
    curves: tuple[Curve, ...] = field(repr=False)

    def save(self, folder: Path) -> None:
        """Write the head, its model card and its ROC curves into ``folder``."""
        shares = {"positive": "acceptable tokens committed", "others": "unacceptable tokens committed"}
        save_with_roc(self.head, folder, self.curves, **shares)


def train_verifier(
    ratios: Ratios,
    origin: Origin,
    settings: VerifierSettings = VerifierSettings(),
    *,
    curve_ratios: Sequence[float] = RATIOS,
    on_fit: Callable[[], None] = lambda: None,
) -> TrainedVerifier:
    """Train a verifier head: a linear layer and a sigmoid, by binary cross-entropy, Adam and early stopping.

    SPRINTER, section 3 (verifier architecture), appendix A.5 and figure 9. The head that is returned has read all
    prompts, as many epochs as was best in the median fold. All figures and thresholds are out of fold. They also choose
    the position, so the better one's are a little too good. ``curve_ratios`` are further λ for the plot, at the
    chosen position, as far as both classes occur in enough prompts.
    ``on_fit`` is called after each fit.
    """
    examples, layer, seed = ratios.labelled(settings.ratio), settings.layer, settings.seed
    check(examples.only(settings.positions))
    folds = deal(examples, seed=seed)
    crossed = {at: cross([layer], [at], examples, folds, on_fit=on_fit) for at in settings.positions}
    position, states = better(examples, {at: each.probabilities for at, each in crossed.items()}, seed=seed)
    scores = crossed[position].probabilities
    by_ratio = {settings.ratio: (examples, scores)}
    for ratio in curve_ratios:
        labelled = ratios.labelled(ratio)
        if ratio not in by_ratio and all(both_classes(labelled.labels[folds != fold]) for fold in np.unique(folds)):
            with suppress(LossyValueError):  # too few prompts have a class for an early stop
                by_ratio[ratio] = labelled, cross([layer], [position], labelled, folds, on_fit=on_fit).probabilities
    known = sorted(by_ratio.items())
    curves = tuple(Curve(f"λ = {ratio:g}", *each, color=f"C{i}") for i, (ratio, each) in enumerate(known))
    epochs = max(1, int(np.median([each[-1].epochs_ for each in crossed[position].by_fold.values()])))
    final = fit(AdamLayer(**{**layer.get_params(), "epochs": epochs}), [position], examples)
    on_fit()

    def threshold_for(recall: float) -> float:
        # A token of this probability is still above the threshold just below it.
        return float(np.nextafter(largest_threshold(examples, scores, recall), 0.0))

    threshold = settings.threshold if settings.recall is None else threshold_for(settings.recall)
    tpr, fpr = rates(examples, scores, threshold)
    fitted = final.predict_proba(examples.features([position]))[:, 1]
    metrics: dict[str, float] = {
        **area_of(examples, scores, seed=seed),
        **{"train_auc": auc_of(examples, fitted), "tpr": tpr, "fpr": fpr, "epochs": epochs},
        **states,
        **{f"auc_lambda_{ratio:g}": auc_of(*each) for ratio, each in known},
        **learning_curve(layer, [position], examples, folds, seed=seed),
    }
    for kind in np.unique(ratios.kinds):
        inside = ratios.kinds == kind
        if both_classes(examples.labels[inside]):
            metrics[f"auc_after_{kind}"] = auc_of(examples.only(()).where(inside), scores[inside])
    scaler, found = final[0], final[-1]
    weight, bias = fold(scaler.mean_, scaler.scale_, found.coef_, found.intercept_)
    record = asdict(settings) | {"layer": layer.get_params()}
    config = VerifierConfig(
        position=position,
        ratio=settings.ratio,
        threshold=threshold,
        thresholds=tuple(
            VerifierRow(t, *rates(examples, scores, t)) for t in sorted({*map(threshold_for, RECALLS), threshold})
        ),
        metrics={**metrics, "folds": len(np.unique(folds)), **examples.counts()},
        **origin.config_fields(record),
    )
    return TrainedVerifier(VerifierHead(config, weight, bias), curves)
