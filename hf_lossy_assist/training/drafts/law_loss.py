"""Cross-entropy of a draft's law to the target's over a vocabulary, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ROWS = 1024

CAUTION = 0.3
"""By what a new draft's last norm is scaled: before it has learned anything, it should hardly be sure of a token."""


class _LawLoss(torch.autograd.Function):
    """Sums the cross-entropy over rows, and computes its gradient on the way."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, law: Callable[[slice], Tensor]) -> Tensor:
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        matrix = weight.detach().to(dtype)
        rows = states.detach().to(dtype)
        total = states.new_zeros((), dtype=torch.float32)
        to_states, to_weight = torch.empty_like(rows), torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            logits, wanted = (rows[part] @ matrix.T).float(), law(part).float()
            logs = logits.log_softmax(-1)
            total -= torch.dot(wanted.flatten(), logs.flatten())
            slope = logs.exp_().mul_(wanted.sum(-1, keepdim=True)).sub_(wanted).to(dtype)
            to_states[part] = slope @ matrix
            to_weight += slope.T @ rows[part]
        ctx.save_for_backward(to_states, to_weight)
        ctx.dtypes = states.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        to_states, to_weight = ctx.saved_tensors
        of_states, of_weight = ctx.dtypes
        return (to_states * grad).to(of_states), (to_weight * grad).to(of_weight), None


def law_loss(states: Tensor, weight: Tensor, law: Callable[[slice], Tensor]) -> Tensor:
    """Return ``-Σ p log q`` summed over rows, with q the softmax of ``states @ weight.T``.

    Parameters
    ----------
    states
        ``(N, d)`` what enters the draft's LM head.
    weight
        ``(V, d)`` the head.
    law
        Returns p of some rows, ``(n, V)``; it may add up to less than 1 where only a part of the vocabulary counts.

    Examples
    --------
    >>> law = torch.tensor([[0.5, 0.5]])
    >>> law_loss(torch.zeros(1, 3), torch.zeros(2, 3), lambda rows: law[rows]).item()  # ln 2
    0.6931471824645996
    """
    return _LawLoss.apply(states, weight, law)
