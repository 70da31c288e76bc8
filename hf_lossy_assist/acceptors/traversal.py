"""Traversal verification: the lossless rule for drawn trees, from the leaves to the root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.messages import Verification
from .base import Acceptor


@dataclass(frozen=True)
class TraversalLossless(Acceptor):
    """Keep the path to the first node with ``u < P`` among the nodes in post-order. Correction ~ the node's p.

    Traversal verification (arXiv:2505.12398). P = 1 at the newest committed token. Node by node, the child x gets
    ``P(x) = min(1, P·p(x)/q(x))`` and is visited with all that follows it. If nothing there is kept, then with
    ``r = Σ [P·p - q]+`` its parent goes on with ``p ← [P·p - q]+ / r`` and ``P ← r / (r + 1 - P)``. A chain is block
    verification. Siblings have to be drawn independently from q.
    """

    path: Tensor  # (B, N) the nodes that stay
    weights: Tensor  # (B, V) what the next token is drawn from

    name = "lossless"
    paper = "Traversal verification (arXiv:2505.12398)"
    lossless_when_sampling = True

    @classmethod
    def of(cls, v: Verification) -> TraversalLossless:
        """Return the rule for one round's trees, which have to be :class:`~hf_lossy_assist.core.trees.DrawnTree`."""
        walk = _Walk(v)
        walk.visit(-1, 0, torch.ones_like(v.p_x[:, 0]))
        rows = torch.arange(len(v.tokens), device=v.tokens.device)
        return cls(pad(v.shape.ancestors, (0, 0, 1, 0))[rows, walk.end + 1], walk.weights)

    def keep(self, v: Verification) -> Tensor:
        return self.path

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return self.weights

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {"p/q": v.p_x / v.q_x, "u": v.u}


class _Walk:
    """Visits the trees of a batch together; rows in which a node has been kept take no more part."""

    def __init__(self, v: Verification) -> None:
        self.v = v
        self.end = torch.full_like(v.tokens[:, 0], -2)
        self.weights = torch.zeros_like(v.logits[:, 0])

    def visit(self, node: int, depth: int, stays: Tensor) -> None:
        """Visit a node, after all that follow it; ``stays`` ``(B,)`` is how probably its path is kept."""
        v = self.v
        p, tiny = v.after(torch.full_like(self.end, node + 1)), torch.finfo(v.logits.dtype).tiny
        for child in v.shape.children(node, depth):
            q, x = v.q[:, child], v.tokens[:, child, None]
            drafted = torch.ones_like(stays, dtype=torch.bool) if v.drafted is None else v.drafted[:, child]
            ratio = p.gather(-1, x) / q.gather(-1, x).clamp(min=tiny)
            self.visit(child, depth + 1, (stays * ratio[:, 0]).clamp(max=1).where(drafted, 0.0))
            rest = (stays[:, None] * p - q).clamp_(min=0)
            over = rest.sum(-1)
            left = drafted & (over > tiny)
            p = torch.where(left[:, None], rest / over[:, None].clamp(min=tiny), p)
            stays = torch.where(drafted, over / (over + (1 - stays)).clamp(min=tiny), stays)
        kept = self.end == -2
        if node >= 0:
            kept &= v.u[:, node] < stays
        self.end = torch.where(kept, node, self.end)
        self.weights = torch.where(kept[:, None], p, self.weights)
