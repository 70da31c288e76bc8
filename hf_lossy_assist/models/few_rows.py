"""Products of a few rows with a weight, in a form that a compiler makes one kernel of, which reads the weight once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FEW_ROWS = 8
"""More rows are left to the libraries' products, which have matrix units."""


def products(rows: Tensor, weight: Tensor) -> Tensor:
    """Return ``rows @ weight.T`` ``(R, N)`` in float32, of ``rows`` ``(R, K)`` and a ``weight`` ``(N, K)`` of any type.

    Each row's product is a sum of its own. A compiler fuses these with each other, with the widening of the weight, and
    with what comes before and after; a library's product has to find its weight in memory as wide as its rows.
    """
    return torch.stack([(row.float() * weight.float()).sum(-1) for row in rows])


class FewRowsLinear(nn.Linear):
    """Multiplies few rows by :func:`products`."""

    def forward(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, self.in_features)
        if len(rows) > FEW_ROWS:
            return super().forward(states)
        out = products(rows, self.weight)
        if self.bias is not None:
            out = out + self.bias
        return out.to(states.dtype).view(*states.shape[:-1], self.out_features)
