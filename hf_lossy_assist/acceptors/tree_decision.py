"""The decision of a round over trees: which path of each stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..trees import TreeDecision, TreeVerification
from .base import Acceptor, correction_at, judge_tokens

if TYPE_CHECKING:
    from ..decoding.limits import LosslessPositions


def decide_tree(acceptor: Acceptor, v: TreeVerification, positions: LosslessPositions | None = None) -> TreeDecision:
    """Apply a rule to one round of trees: keep one path of each, then choose the token that follows it.

    A node is reached where the rule keeps its whole path. Greedily, the deepest node that is reached ends the path,
    and of several the likeliest by the target; where tokens are drawn, the first sibling that is kept goes on.
    """
    keep, credits, strict = judge_tokens(acceptor, v, positions)
    tree = v.tree
    if v.do_sample:
        end = _drawn_end(v, keep)
    else:
        end = _deepest_end(v, keep, None if acceptor.is_lossless(False) else v.log_p)
    on_path = torch.nn.functional.pad(tree.ancestors, (0, 0, 1, 0))[tree.rows[:, 0], end]
    n_accepted = on_path.sum(-1)
    children = tree.parents + 1 == end[:, None]
    if v.drafted is not None:
        children = children & v.drafted
    used_up = ~children.any(-1)
    path = tree.columns(on_path)
    charge = acceptor.charge(v)
    if charge is not None:
        charge = charge.where(on_path, 0.0).sum(-1)
    if strict is None and not v.do_sample and type(acceptor).correction is Acceptor.correction:
        next_token = v.own_best.gather(-1, end[:, None])[:, 0]
    else:
        numbers = torch.arange(len(tree), device=end.device)
        at = torch.where(children, numbers, 0).amax(-1)  # the last child: all before it have been turned down too
        replaced = correction_at(acceptor, v, at, strict)
        next_token = v.choose(torch.where(used_up[:, None], v.after(end), replaced))
    return TreeDecision(keep, n_accepted, next_token, v.lossless, credits, path, charge, used_up)


def _reached(v: TreeVerification, keep: Tensor) -> Tensor:
    """Return ``(B, N)`` which nodes' whole paths are kept."""
    return ~(v.tree.ancestors & ~keep[:, None]).any(-1)


def _drawn_end(v: TreeVerification, keep: Tensor) -> Tensor:
    """Return ``(B,)`` the last node of the path, counted from 1, where the first sibling that is kept goes on."""
    first = keep & ~(v.tree.earlier & keep[:, None]).any(-1)
    numbers = torch.arange(1, len(v) + 1, device=keep.device)
    return torch.where(_reached(v, first), numbers, 0).amax(-1)


def _deepest_end(v: TreeVerification, keep: Tensor, log_p: Tensor | None) -> Tensor:
    """Return ``(B,)`` the deepest node that is reached, counted from 1; of several, the one of the largest ``log_p``.

    Without, there are never several: the target's argmax is one.
    """
    depths = torch.where(_reached(v, keep), v.tree.depths, 0)
    deepest = depths.amax(-1)
    tied = depths == deepest[:, None]
    score = (
        tied.float() if log_p is None else log_p.clamp(min=torch.finfo(log_p.dtype).min).masked_fill(~tied, -torch.inf)
    )
    return torch.where(deepest > 0, score.argmax(-1) + 1, 0)
