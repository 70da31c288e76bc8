"""Objectives of a draft's training: the distance of its distribution to the target's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

CAUTION = 0.3
"""Scale of a new draft's last norm: an untrained draft should hardly be sure of a token."""

_ROWS = 1024


class DraftObjective(nn.Module, ABC):
    """The loss of a draft; its target stays as it is."""

    target: PreTrainedModel

    def __init__(self, target: PreTrainedModel) -> None:
        super().__init__()
        vars(self)["target"] = target  # as a submodule it would be trained and saved

    @abstractmethod
    def forward(self, ids: Tensor, answers: Tensor, states: Tensor, last: Tensor, done: float = 1.0) -> Tensor:
        """Return the mean loss over the predicted tokens of a batch, after a share ``done`` of the training."""

    @abstractmethod
    def matches(self, ids: Tensor, answers: Tensor, states: Tensor, last: Tensor, gamma: int) -> Tensor:
        """Return ``(B, L, γ)`` whether the likeliest drafts after each known token are the text's own.

        The k-th one assumes that those before it are right.
        """


def soft_cross_entropy(states: Tensor, weight: Tensor, target: Callable[[slice], Tensor]) -> Tensor:
    """Return ``-Σ p log q`` summed over rows, with q the softmax of ``states @ weight.T``, without storing all logits.

    ``states`` ``(N, d)`` enter the draft's LM head ``weight`` ``(V, d)``. ``target`` returns p ``(n, V)`` of a slice of
    rows; it may add up to less than 1 where only a part of the vocabulary counts.
    """
    return _SoftCrossEntropy.apply(states, weight, target)


class _SoftCrossEntropy(torch.autograd.Function):
    """Computes the gradient during the forward, a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, target: Callable[[slice], Tensor]) -> Tensor:
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        matrix, rows = weight.detach().to(dtype), states.detach().to(dtype)
        total = states.new_zeros((), dtype=torch.float32)
        to_states, to_weight = torch.empty_like(rows), torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            logs, p = (rows[part] @ matrix.T).float().log_softmax(-1), target(part).float()
            total -= torch.dot(p.flatten(), logs.flatten())
            slope = logs.exp_().mul_(p.sum(-1, keepdim=True)).sub_(p).to(dtype)
            to_states[part] = slope @ matrix
            to_weight += slope.T @ rows[part]
        ctx.save_for_backward(to_states.to(states.dtype), to_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        to_states, to_weight = ctx.saved_tensors
        return to_states * grad, to_weight * grad, None
