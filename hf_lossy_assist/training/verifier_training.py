"""Training of verifier heads from ratios of probabilities."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from ..errors import LossyValueError
from ..heads import VerifierConfig, VerifierHead, VerifierRow, fold
from ..heads.verifier_head import POSITIONS
from ..values import Checked
from .examples import Examples, Ratios, check
from .saving import Curve, Origin, save_with_roc
from .validation import VERIFIER_THRESHOLDS, Share, both_classes, metrics_of, rates, validation_mask


@dataclass(frozen=True)
class Descent:
    """Settings of Adam for a linear layer.

    The fit stops after ``patience`` epochs without a lower validation loss, at the latest after ``max_epochs``, and
    returns to the epoch with the lowest. ``seed`` determines the order of the tokens.
    """

    learning_rate: float = 1e-2
    batch: int = 256
    patience: int = 10
    max_epochs: int = 300
    seed: int = 0


@dataclass(frozen=True, eq=False)
class VerifierFit:
    """A linear layer on one raw state, from the epoch with the lowest validation loss.

    ``validation`` are its probabilities ``(N,)`` on the validation tokens.
    """

    position: str
    weight: Tensor
    bias: Tensor
    epoch: int
    validation: NDArray[np.float32]
    train_auc: float
    validation_auc: float


def fit_layer(position: str, train: Examples, validation: Examples, descent: Descent) -> VerifierFit:
    """Fit a linear layer to one standardised state by binary cross-entropy, and fold the standardisation in.

    SPRINTER, appendix A.5: Adam, with early stopping on a held-out split.
    """
    sides = (train, validation)
    raw = [torch.from_numpy(side.states[position]) for side in sides]
    labels = [torch.from_numpy(side.labels).float() for side in sides]
    mean, scale = raw[0].mean(0), raw[0].std(0, correction=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    layer, epoch = _descend([(side - mean) / scale for side in raw], labels, descent)
    weight, bias = fold(*(x.detach().numpy() for x in (mean, scale, layer.weight, layer.bias)))
    scores = [(states @ weight + bias).sigmoid().numpy() for states in raw]
    areas = (float(roc_auc_score(side.labels, p)) for side, p in zip(sides, scores, strict=True))
    return VerifierFit(position, weight, bias, epoch, scores[1], *areas)


def _descend(states: Sequence[Tensor], labels: Sequence[Tensor], descent: Descent) -> tuple[nn.Linear, int]:
    """Return the layer with the lowest validation loss, and its epoch."""
    generator = torch.Generator().manual_seed(descent.seed)
    layer = nn.Linear(states[0].shape[1], 1)
    # The loss is convex, so zeros are as good a start as any.
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    loss_of = nn.BCEWithLogitsLoss()
    adam = torch.optim.Adam(layer.parameters(), lr=descent.learning_rate)
    lowest, kept, kept_epoch = float("inf"), copy.deepcopy(layer), 0
    for epoch in range(1, descent.max_epochs + 1):
        for batch in torch.randperm(len(labels[0]), generator=generator).split(descent.batch):
            adam.zero_grad()
            loss_of(layer(states[0][batch]).squeeze(-1), labels[0][batch]).backward()
            adam.step()
        with torch.no_grad():
            loss = loss_of(layer(states[1]).squeeze(-1), labels[1]).item()
        if loss < lowest:
            lowest, kept, kept_epoch = loss, copy.deepcopy(layer), epoch
        if epoch - kept_epoch >= descent.patience:
            break
    return kept, kept_epoch


RATIOS = (1.0, 1.2, 1.5)
"""The λ of the paper's figure 9."""


@dataclass(frozen=True)
class VerifierSettings(Checked):
    """Settings for training a verifier head."""

    ratio: float = 1.0  # λ: a token is acceptable iff q(x) / p(x) <= λ; the paper's theorems assume 1
    position: str | None = None  # the state to read, "previous" or "token"; None: the better one on validation
    threshold: float = 0.5  # a token is committed iff the head's probability is above it
    validation_share: Share = 0.1  # the share of the prompts for early stopping and validation
    descent: Descent = field(default_factory=Descent)
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio < float("inf"):
            raise LossyValueError(f"`lambda` has to be a number above 0, but is {self.ratio}")
        if self.position not in (None, *POSITIONS):
            raise LossyValueError(f"`position` has to be one of {list(POSITIONS)} or None, but is {self.position!r}")

    @property
    def positions(self) -> tuple[str, ...]:
        return POSITIONS if self.position is None else (self.position,)


@dataclass(frozen=True, eq=False)
class TrainedVerifier:
    """A verifier head, with the fits of other positions and other λ.

    ``fits`` has one for each position at the chosen λ, the best first; ``by_ratio`` one for each λ at the chosen
    position, and ``curves`` their validation curves.
    """

    head: VerifierHead
    fits: tuple[VerifierFit, ...]
    by_ratio: Mapping[float, VerifierFit]
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
    on_fit: Callable[[VerifierFit], None] = lambda fit: None,
) -> TrainedVerifier:
    """Train a verifier head: a linear layer and a sigmoid, by binary cross-entropy, Adam and early stopping.

    SPRINTER, section 3 (verifier architecture), appendix A.5 and figure 9. The validation prompts stop the training,
    choose the position and give all figures. ``curve_ratios`` are further λ for the plot, at the chosen position, as
    far as both classes occur. ``on_fit`` is called after each fit.
    """
    examples = ratios.labelled(settings.ratio)
    check(examples.only(settings.positions))
    mask = validation_mask(examples.labels, examples.prompts, share=settings.validation_share, seed=settings.seed)

    def fitted(position: str, ratio: float) -> VerifierFit:
        tokens = ratios.labelled(ratio).only([position])
        fit = fit_layer(position, tokens.where(~mask), tokens.where(mask), settings.descent)
        on_fit(fit)
        return fit

    fits = [fitted(position, settings.ratio) for position in settings.positions]
    fits.sort(key=lambda fit: -fit.validation_auc)  # the first among equals stays first
    by_ratio = {settings.ratio: fits[0]}
    for ratio in curve_ratios:
        labels = ratios.labelled(ratio).labels
        if ratio not in by_ratio and both_classes(labels[mask]) and both_classes(labels[~mask]):
            by_ratio[ratio] = fitted(fits[0].position, ratio)
    by_ratio = dict(sorted(by_ratio.items()))
    curves = tuple(
        Curve(f"λ = {ratio:g}", ratios.labelled(ratio).labels[mask], fit.validation, color=f"C{i}")
        for i, (ratio, fit) in enumerate(by_ratio.items())
    )
    chosen, validation, kinds = fits[0], examples.only([]).where(mask), ratios.kinds[mask]
    tpr, fpr = rates(validation.labels, chosen.validation, settings.threshold)
    more = {
        **{"train_auc": chosen.train_auc, "tpr": tpr, "fpr": fpr, "epochs": chosen.epoch},
        **{f"auc_{fit.position}": fit.validation_auc for fit in fits},
        **{f"auc_lambda_{ratio:g}": fit.validation_auc for ratio, fit in by_ratio.items()},
    }
    for kind in np.unique(kinds):
        labels = validation.labels[kinds == kind]
        if both_classes(labels):
            more[f"auc_after_{kind}"] = float(roc_auc_score(labels, chosen.validation[kinds == kind]))
    thresholds = sorted({*VERIFIER_THRESHOLDS, settings.threshold})
    config = VerifierConfig(
        position=chosen.position,
        ratio=settings.ratio,
        threshold=settings.threshold,
        thresholds=tuple(VerifierRow(t, *rates(validation.labels, chosen.validation, t)) for t in thresholds),
        metrics=metrics_of(examples, validation, chosen.validation, seed=settings.seed, **more),
        **origin.config_fields(asdict(settings)),
    )
    return TrainedVerifier(VerifierHead(config, chosen.weight, chosen.bias), tuple(fits), by_ratio, curves)
