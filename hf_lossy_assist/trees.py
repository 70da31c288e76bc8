"""Drafts that are trees: their shape, and what the target says about their nodes.

Notation as in :mod:`~hf_lossy_assist.messages`, with ``N`` nodes in the place of n drafted tokens. A node stands after
its parent, and after the siblings that are tried before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from .decoding.row_decision import RowDecision, charge_bits, charge_of
from .messages import Decision, Verification
from .sampling import residual


@dataclass(frozen=True, eq=False)
class Tree:
    """The shape of the trees of a batch, which have equally many nodes each.

    Attributes
    ----------
    parents
        ``(B, N)`` the node that each node follows, -1 where that is the newest committed token.
    levels
        No node is deeper.
    rooms
        How deep the nodes are that each row has room for; the others only fill up. None where all have room for all.

    Examples
    --------
    >>> Tree(torch.tensor([[-1, -1, 0, 2]]), levels=3).depths
    tensor([[1, 1, 2, 3]])
    """

    parents: Tensor
    levels: int
    rooms: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return self.parents.shape[1]

    @cached_property
    def rows(self) -> Tensor:
        """``(B, 1)`` to index with."""
        return torch.arange(len(self.parents), device=self.parents.device)[:, None]

    @cached_property
    def ancestors(self) -> Tensor:
        """``(B, N, N)`` whether the second node is the first or before it on its path."""
        batch, n = self.parents.shape
        # Powers of the matrix that leads from a node to its parent and to itself; the root's column is left out.
        step = torch.zeros(batch, n, n + 1, device=self.parents.device)
        step = step.scatter_(2, self.parents[..., None] + 1, 1.0)[..., 1:] + torch.eye(n, device=step.device)
        for _ in range((self.levels - 2).bit_length() if self.levels > 2 else 0):
            step = (step @ step).clamp_(max=1)
        return step > 0

    @cached_property
    def depths(self) -> Tensor:
        """``(B, N)`` how many tokens a node's path has, its own included."""
        return self.ancestors.sum(-1)

    @cached_property
    def siblings(self) -> Tensor:
        """``(B, N, N)`` whether two nodes have one parent, as a node and itself have."""
        return self.parents[:, :, None] == self.parents[:, None, :]

    @cached_property
    def earlier(self) -> Tensor:
        """``(B, N, N)`` whether the second node is a sibling that is tried before the first."""
        return self.siblings.tril(-1)

    @cached_property
    def paths(self) -> Tensor:
        """``(B, N, levels)`` the nodes from the first to each node; then any."""
        return self.columns(self.ancestors)

    def columns(self, chosen: Tensor) -> Tensor:
        """Return ``(…, levels)`` the nodes that ``chosen`` ``(…, N)`` tells of one path, in their order; then any."""
        n = len(self)
        numbers = torch.arange(n, device=chosen.device).masked_fill(~chosen, n)
        return numbers.sort(-1).values[..., : self.levels].clamp(max=n - 1)

    def at_parents(self, values: Tensor) -> Tensor:
        """Return ``(B, N, …)`` what ``values`` ``(B, N + 1, …)``, of the root and the nodes, say at each's parent."""
        return values[self.rows, self.parents + 1]


def along_path(values: Tensor, path: Tensor, nodes: int, dim: int = 1) -> Tensor:
    """Return values that end in those of ``nodes`` nodes along a dimension, with those of ``path`` ``(B, k)`` alone."""
    values = values.transpose(1, dim)
    rows, first = torch.arange(len(values), device=values.device)[:, None], values.shape[1] - nodes
    return torch.cat([values[:, :first], values[rows, path.to(values.device) + first]], dim=1).transpose(1, dim)


class TreeVerification(Verification):
    """What the target says about trees: position i is that of node i, and p there the law at its parent.

    So a rule judges every node on its own, given that its path is kept. Where tokens are drawn, siblings are tried in
    turn, and :attr:`ratio` and :meth:`residual_distribution` are about what earlier ones leave of p: the draft is
    certain of each sibling when it is its turn.

    Parameters
    ----------
    tree
        The trees.
    tokens
        ``(B, N)``.
    own_logits
        ``(B, N + 1, V)`` processed float32 logits of p after the newest committed token, and after each node.
    **others
        As in :class:`Verification`; ``hidden`` of the newest committed token and the nodes, what the dropped heads say
        at the nodes' parents.
    """

    def __init__(self, tree: Tree, tokens: Tensor, own_logits: Tensor, **others: Any) -> None:
        super().__init__(tokens=tokens, logits=own_logits, **others)
        vars(self).update(tree=tree, own_logits=own_logits)
        del vars(self)["logits"]  # worked out where a rule asks

    @cached_property
    def drafted(self) -> Tensor | None:  # type: ignore[override]
        """``(B, N)`` whether a row has room for a node, or None where all have."""
        if self.tree.rooms is None:
            return None
        return self.tree.depths <= torch.tensor(self.tree.rooms, device=self.tokens.device)[:, None]

    @cached_property
    def logits(self) -> Tensor:  # type: ignore[override]
        """``(B, N + 1, V)`` processed logits at the nodes' parents; the last position is none."""
        return self._at_parents(self.own_logits)

    @cached_property
    def own_p(self) -> Tensor:
        """``(B, N + 1, V)`` probabilities after the newest committed token, and after each node."""
        return self.own_logits.softmax(-1)

    @cached_property
    def p(self) -> Tensor:  # type: ignore[override]
        """``(B, N + 1, V)`` probabilities at the nodes' parents; the last position is none."""
        return self._at_parents(self.own_p)

    @cached_property
    def q(self) -> Tensor:  # type: ignore[override]
        """``(B, N, V)`` 1 at a node's token and at those of its siblings: a residual is what all of them leave."""
        same = self.tree.siblings.to(self.own_logits.dtype)
        tokens = self.tokens[:, None].expand(-1, len(self), -1)
        return same.new_zeros(*tokens.shape[:2], self.own_logits.shape[-1]).scatter_reduce_(-1, tokens, same, "amax")

    @cached_property
    def logit_x(self) -> Tensor:  # type: ignore[override]
        """``(B, N)`` processed target logits of the nodes' tokens."""
        return self.own_logits[self.tree.rows, self.tree.parents + 1, self.tokens]

    @cached_property
    def p_x(self) -> Tensor:  # type: ignore[override]
        """``(B, N)`` target probabilities of the nodes' tokens."""
        return self.own_p[self.tree.rows, self.tree.parents + 1, self.tokens]

    @cached_property
    def p_left(self) -> Tensor:  # type: ignore[override]
        """``(B, N)`` p(x), of what is left of p where tokens are drawn and earlier siblings have been turned down."""
        if not self.do_sample:
            return self.p_x
        tried = (self.tree.earlier.to(self.p_x.dtype) @ self.p_x[..., None])[..., 0]
        return self.p_x / (1 - tried).clamp(min=1e-10)

    @cached_property
    def ratio(self) -> Tensor:  # type: ignore[override]
        """``(B, N)`` the same: the draft is certain of its token."""
        return self.p_left

    @cached_property
    def own_best(self) -> Tensor:
        """``(B, N + 1)`` the target's likeliest tokens after the newest committed one, and after each node."""
        return self.own_logits.argmax(-1)

    @cached_property
    def best(self) -> Tensor:  # type: ignore[override]
        """``(B, N + 1)`` the target's likeliest tokens at the nodes' parents; the last position is none."""
        return self._at_parents(self.own_best)

    @cached_property
    def log_p(self) -> Tensor:
        """``(B, N)`` log p of each node's path."""
        own = self.logit_x - self.tree.at_parents(self.own_logits.logsumexp(-1))
        return (own[:, None].masked_fill(~self.tree.ancestors, 0.0)).sum(-1)

    @property
    def states_before(self) -> Tensor | None:
        """``(B, N, d)`` the target's states that predicted the nodes, where a rule asked for states."""
        return None if self.hidden is None else self.tree.at_parents(self.hidden)

    @property
    def draft_states_after(self) -> Tensor:
        """``(B, N, d)`` the draft model's states that predicted what was drafted after each node; NaN for nothing."""
        children = self.tree.parents[:, None] == torch.arange(len(self), device=self.tokens.device)[:, None]
        states = self.draft_hidden[self.tree.rows, children.long().argmax(-1)]
        return states.masked_fill(~children.any(-1, keepdim=True), torch.nan)

    def target_distribution(self, at: Tensor) -> Tensor:
        return self.after(self.tree.parents.gather(-1, at[:, None])[:, 0] + 1)

    @property
    def left(self) -> Tensor:
        """``(B, N)`` how many tokens a path through each node has from it on at most, itself included."""
        rooms = self.tree.rooms or (self.tree.levels,) * len(self.tokens)
        return torch.tensor(rooms, device=self.tokens.device)[:, None] + 1 - self.tree.depths

    def so_far(self, values: Tensor) -> Tensor:
        """Return the sums ``(B, N)`` of ``values`` over the path to each node, itself included."""
        return (values[:, None] * self.tree.ancestors).sum(-1)

    def after(self, node: Tensor) -> Tensor:
        """Return p after one node per row, ``(B, V)``; 0 is the newest committed token, and i + 1 node i."""
        rows = self.tree.rows[:, 0]
        return self.own_p[rows, node] if self.do_sample else self.own_logits[rows, node]

    def residual_distribution(self, at: Tensor) -> Tensor:
        p = self.target_distribution(at)
        return residual(p, self.proposed(at)) if self.do_sample else p

    def proposed(self, at: Tensor) -> Tensor:
        same = self.tree.siblings[self.tree.rows[:, 0], at].to(self.own_logits.dtype)
        return same.new_zeros(len(at), self.own_logits.shape[-1]).scatter_reduce_(-1, self.tokens, same, "amax")

    def followed(self, match: Tensor, count: int) -> Tensor:
        tree = self.tree
        # As many mismatches on the path to a node as to one that is `count` tokens deeper: there are none between.
        missed = (tree.ancestors & ~match[:, None]).sum(-1)
        deeper = tree.depths[:, None] - tree.depths[:, :, None] == count
        return (deeper & tree.ancestors.mT & (missed[:, None] == missed[:, :, None])).any(-1)

    def along(self, path: Tensor) -> Verification:
        """Return what the target says about one path ``(B, k)`` of each tree, and what its forward returned for it."""
        n, raw, given = len(self), self.raw_logits, self.outputs
        states, weights = (getattr(given, name, None) for name in ("hidden_states", "attentions"))
        if states is not None:
            states = tuple(along_path(layer, path, n) for layer in states)
        if weights is not None:
            weights = tuple(along_path(along_path(layer, path, n, 2), path, n, 3) for layer in weights)
        return Verification(
            tokens=self.tokens.gather(-1, path),
            logits=along_path(self.own_logits, path, n),
            outputs=CausalLMOutput(hidden_states=states, attentions=weights),
            raw_logits=None if raw is None else along_path(raw, path, n),
        )

    def _at_parents(self, own: Tensor) -> Tensor:
        return own[self.tree.rows, torch.nn.functional.pad(self.tree.parents + 1, (0, 1))]


@dataclass(frozen=True, eq=False)
class TreeDecision(Decision):
    """Acceptor → commit: the path of a tree that stays, as if it were a chain's prefix, and the token after it.

    Attributes
    ----------
    keep, lossless, kept_by
        Of all nodes, as for a chain.
    used_up
        ``(B,)`` whether nothing was drafted after them.
    """

    used_up: Tensor | None = None

    def fetch(self, tokens: Tensor) -> list[RowDecision]:
        """Bring over all that the host needs of the path, with its ``tokens`` ``(B, levels)``, in one transfer."""
        masks = {id(mask): mask for mask in (self.lossless, *self.kept_by.values())}
        numbers = [x.unsqueeze(-1) for x in (self.n_accepted, self.next_token, self.used_up)]
        on_path = [mask.gather(-1, self.path) for mask in masks.values()]
        packed = torch.cat([*numbers, tokens, *on_path, *charge_bits(self)], dim=-1).tolist()
        levels = tokens.shape[1]
        columns = {key: slice(3 + i * levels, 3 + (i + 1) * levels) for i, key in enumerate(masks, 1)}
        lossless = columns[id(self.lossless)]
        kept_by = {rule: columns[id(mask)] for rule, mask in self.kept_by.items()}
        decisions = []
        for row in packed:
            tokens_kept = [*row[3 : 3 + row[0]], row[1]]
            by_rule = {rule: row[at] for rule, at in kept_by.items()}
            charge = charge_of(self, row[-1])
            decisions.append(PathDecision(0, row[0], tokens_kept, row[lossless], by_rule, bool(row[2]), charge=charge))
        return decisions


@dataclass(frozen=True)
class PathDecision(RowDecision):
    """A round's decision about one row's tree, on the host: its path, and whether that ended where the tree does."""

    leaf: bool

    def used_up(self, undecided: int) -> bool:
        return self.leaf
