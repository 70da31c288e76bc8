"""How often dropped heads agree with the clean one, counted naively."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def agreement(head: nn.Module, states: Tensor, paths: int, dropout: float) -> float:
    """Count naively, position by position, at the surer half of them."""
    rows = states.flatten(0, 1)
    logits = [head(row) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: -logits[i].softmax(-1).max().item())
    surest = order[: len(rows) // 2]
    uniform = torch.rand((paths, len(surest), rows.shape[-1]), generator=torch.Generator().manual_seed(0))
    same = 0
    for path in range(paths):
        for place, i in enumerate(surest):
            kept = torch.where(uniform[path, place] < dropout, 0.0, rows[i] / (1 - dropout))
            same += int(head(kept).argmax() == logits[i].argmax())
    return same / (paths * len(surest))
