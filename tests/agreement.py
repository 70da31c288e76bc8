"""How often dropped heads agree with the clean one, counted naively."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def agreement(head: nn.Module, states: Tensor, paths: int, dropout: float) -> float:
    """Count naively, position by position, at the surer half of them."""
    logits = [head(row) for row in states]
    order = sorted(range(len(states)), key=lambda i: -logits[i].softmax(-1).max().item())
    surest = order[: len(states) // 2]
    uniform = torch.rand((max(32, len(surest)), paths, states.shape[-1]), generator=torch.Generator().manual_seed(0))
    same = 0
    for path in range(paths):
        for place, i in enumerate(surest):
            kept = torch.where(uniform[place, path] < dropout, 0.0, states[i] / (1 - dropout))
            same += int(head(kept).argmax() == logits[i].argmax())
    return same / (paths * len(surest))
