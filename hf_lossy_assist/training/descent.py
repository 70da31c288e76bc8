"""A linear layer and a sigmoid, fitted by Adam."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..heads.folding import fold
from .examples import Examples


@dataclass(frozen=True)
class Descent:
    """How a linear layer is fitted.

    Attributes
    ----------
    learning_rate, batch
        Of Adam.
    patience
        Fitting stops after so many epochs without a lower validation loss, and goes back to the lowest.
    max_epochs
        Fitting stops then in any case.
    seed
        Of the order of tokens.
    """

    learning_rate: float = 1e-2
    batch: int = 256
    patience: int = 10
    max_epochs: int = 300
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Layer:
    """What was fitted.

    Attributes
    ----------
    weight, bias
        ``(d,)`` and ``()``, on raw states.
    epoch
        The epoch of the lowest validation loss, which they come from.
    """

    weight: Tensor
    bias: Tensor
    epoch: int

    def probability(self, states: Tensor) -> Tensor:
        """Return ``(N,)`` probabilities from ``(N, d)`` raw states."""
        return (states @ self.weight + self.bias).sigmoid()


def fit_layer(column: str, train: Examples, validation: Examples, descent: Descent) -> Layer:
    """Fit a linear layer to one state by binary cross-entropy, standardise on the way, and fold that in.

    SPRINTER, appendix A.5: Adam, with early stopping on a held-out split.
    """
    raw = [torch.from_numpy(side.states[column]) for side in (train, validation)]
    labels = [torch.from_numpy(side.labels).float() for side in (train, validation)]
    mean, scale = raw[0].mean(0), raw[0].std(0, correction=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    layer, epoch = _descend([(side - mean) / scale for side in raw], labels, descent)
    parts = (x.detach().numpy() for x in (mean, scale, layer.weight, layer.bias))
    return Layer(*fold(*parts), epoch)


def _descend(states: Sequence[Tensor], labels: Sequence[Tensor], descent: Descent) -> tuple[nn.Linear, int]:
    """Return the layer of the epoch with the lowest validation loss, and that epoch."""
    generator = torch.Generator().manual_seed(descent.seed)
    layer = nn.Linear(states[0].shape[1], 1)
    # The loss is convex, so the beginning needs no luck.
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
