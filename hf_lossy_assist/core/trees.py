"""Drafts that are trees.

Notation as in :mod:`~hf_lossy_assist.core.shapes`, with ``N`` nodes in the place of n drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .shapes import Prefix, Shape
from .transfers import to_device


@dataclass(frozen=True, eq=False)
class Tree(Shape):
    """The trees of a batch, with equally many nodes each; a node is a drafted token.

    A node stands after its parent, and after the siblings that are tried before it. When tokens are drawn, siblings are
    tried in turn, each with a point mass as its draft distribution.

    Examples
    --------
    >>> Tree(torch.tensor([[-1, -1, 0, 2]]), levels=3).depths
    tensor([[1, 1, 2, 3]])
    """

    parents: Tensor  # (B, N) the node that each node follows, -1 for the newest committed token
    levels: int  # the largest depth
    remaining: tuple[int, ...] | None = None  # the depth that fits into each row; deeper nodes are filler

    def __len__(self) -> int:
        return self.parents.shape[1]

    @cached_property
    def rows(self) -> Tensor:
        """``(B, 1)`` row numbers, to index with."""
        return torch.arange(len(self.parents), device=self.parents.device)[:, None]

    @cached_property
    def ancestors(self) -> Tensor:
        """``(B, N, N)`` whether the second node is on the path to the first, or the first itself."""
        batch, n = self.parents.shape
        # Powers of the matrix from each node to its parent and itself, without the root's column.
        exact = {"dtype": torch.float32, "device": self.parents.device}
        step = torch.zeros(batch, n, n + 1, **exact).scatter_(2, self.parents[..., None] + 1, 1.0)
        step = step[..., 1:] + torch.eye(n, **exact)
        for _ in range((self.levels - 2).bit_length() if self.levels > 2 else 0):
            step = (step @ step).clamp_(max=1)
        return step > 0

    @cached_property
    def depths(self) -> Tensor:
        return self.ancestors.sum(-1)

    @cached_property
    def siblings(self) -> Tensor:
        """``(B, N, N)`` whether two nodes have one parent; a node is its own sibling."""
        return self.parents[:, :, None] == self.parents[:, None, :]

    @cached_property
    def earlier(self) -> Tensor:
        """``(B, N, N)`` whether the second node is a sibling that is tried before the first."""
        return self.siblings.tril(-1)

    @cached_property
    def paths(self) -> Tensor:
        """``(B, N, levels)`` the nodes on the path to each node, then arbitrary ones."""
        return self._columns(self.ancestors)

    @cached_property
    def drafted(self) -> Tensor | None:
        return None if self.remaining is None else self.depths <= self._remaining

    @property
    def to_the_end(self) -> Tensor:
        return self._remaining + 1 - self.depths

    @cached_property
    def _remaining(self) -> Tensor:
        if self.remaining is None:
            return torch.full((len(self.parents), 1), self.levels, device=self.parents.device)
        return to_device(self.remaining, self.parents.device)[:, None]

    def positions(self, after: Tensor) -> Tensor:
        return after[self.rows, torch.nn.functional.pad(self.parents + 1, (0, 1))]

    def at_tokens(self, after: Tensor) -> Tensor:
        return after[self.rows, self.parents + 1]

    def next_drafted(self, values: Tensor) -> Tensor:
        children = self.parents[:, None] == torch.arange(len(self), device=self.parents.device)[:, None]
        following = values[self.rows, children.long().argmax(-1)]
        return following.masked_fill(~children.any(-1, keepdim=True), torch.nan)

    def point_masses(self, tokens: Tensor, like: Tensor) -> Tensor:
        return _multi_hot(tokens[:, None].expand(-1, len(self), -1), self.siblings, like)

    def point_mass(self, tokens: Tensor, at: Tensor, like: Tensor) -> Tensor:
        return _multi_hot(tokens, self.siblings[self.rows[:, 0], at], like)

    def untried(self, p_x: Tensor) -> Tensor:
        tried = (self.earlier.to(p_x.dtype) @ p_x[..., None])[..., 0]
        return p_x / (1 - tried).clamp(min=1e-10)

    def so_far(self, values: Tensor) -> Tensor:
        return torch.where(self.ancestors, values[:, None], 0).sum(-1)  # a product would turn infinite values into NaN

    def followed(self, match: Tensor, count: int) -> Tensor:
        # All tokens between match if both ends have equally many mismatches on their paths.
        missed = (self.ancestors & ~match[:, None]).sum(-1)
        deeper = self.depths[:, None] - self.depths[:, :, None] == count
        return (deeper & self.ancestors.mT & (missed[:, None] == missed[:, :, None])).any(-1)

    def parent(self, at: Tensor) -> Tensor:
        return self.parents.gather(-1, at[:, None])[:, 0] + 1

    def prefix(self, keep: Tensor, do_sample: bool, log_p: Callable[[], Tensor | None]) -> Prefix:
        """Keep one path: greedily the deepest, the likeliest of ties; sampling, through the first kept siblings."""
        end = self._drawn_end(keep) if do_sample else self._deepest_end(keep, log_p)
        mask = torch.nn.functional.pad(self.ancestors, (0, 0, 1, 0))[self.rows[:, 0], end]
        children = self.parents + 1 == end[:, None]
        if self.drafted is not None:
            children = children & self.drafted
        numbers = torch.arange(len(self), device=end.device)
        last = torch.where(children, numbers, 0).amax(-1)  # all children before it have been rejected too
        return Prefix(mask, mask.sum(-1), end, ~children.any(-1), last, self._columns(mask))

    def _reached(self, keep: Tensor) -> Tensor:
        """Return ``(B, N)`` which nodes' whole paths are kept."""
        return ~(self.ancestors & ~keep[:, None]).any(-1)

    def _drawn_end(self, keep: Tensor) -> Tensor:
        first = keep & ~(self.earlier & keep[:, None]).any(-1)
        numbers = torch.arange(1, len(self) + 1, device=keep.device)
        return torch.where(self._reached(first), numbers, 0).amax(-1)

    def _deepest_end(self, keep: Tensor, log_p: Callable[[], Tensor | None]) -> Tensor:
        depths = torch.where(self._reached(keep), self.depths, 0)
        deepest = depths.amax(-1)
        tied = depths == deepest[:, None]
        of_path = log_p()
        if of_path is None:
            score = tied.float()
        else:
            score = of_path.clamp(min=torch.finfo(of_path.dtype).min).masked_fill(~tied, -torch.inf)
        return torch.where(deepest > 0, score.argmax(-1) + 1, 0)

    def by_text(self, processors: Any, ids: Tensor, logits: Tensor, alike: bool = False) -> Tensor:
        n = len(self)
        text, nodes = ids[:, :-n], ids[:, -n:]
        tokens = nodes[self.rows[..., None], self.paths]  # (B, N, levels)
        processed = torch.empty_like(logits)
        processed[:, 0] = processors(text.clone(), logits[:, 0].clone())
        if alike:  # at every depth all nodes are shown, as if all were so deep
            before, count = logits[:, 1:], logits.shape[1] - 1
            for depth in range(1, self.levels + 1) if count else ():
                own = tokens[:, :count, :depth]
                shown = torch.cat([text[:, None].expand(-1, count, -1), own], dim=-1).flatten(0, 1)
                result = processors(shown, before.flatten(0, 1).clone()).view_as(before)
                processed[:, 1:] = torch.where((self.depths[:, :count] == depth)[..., None], result, processed[:, 1:])
            return processed
        # Groups nodes of equal depth, whose texts are equally long; this needs the depths on the host.
        depths = self.depths[:, : logits.shape[1] - 1].tolist()
        for depth in range(1, self.levels + 1):
            at = [[i for i, own in enumerate(row) if own == depth] for row in depths]
            for j in range(max(map(len, at))):
                columns = [row[j] if j < len(row) else 0 for row in at]
                there = [i for i, row in enumerate(at) if j < len(row)]
                every = list(range(len(at)))
                shown = torch.cat([text, tokens[every, columns, :depth]], dim=1)
                result = processors(shown, logits[every, [i + 1 for i in columns]])
                processed[there, [columns[i] + 1 for i in there]] = result[there]
        return processed

    def along(self, ids: Tensor, of_text: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        n = len(self)
        text, nodes = ids[:, :-n], ids[:, -n:]
        paths = nodes[self.rows[..., None], self.paths]
        texts = torch.cat([text[:, None].expand(-1, n, -1), paths], dim=-1)
        values = of_text(texts.flatten(0, 1)).view(texts.shape)
        end = text.shape[1] + self.depths[..., None]
        return values.gather(-1, end - 2)[..., 0], values.gather(-1, end - 1)[..., 0]

    def _columns(self, chosen: Tensor) -> Tensor:
        """Return ``(…, levels)`` the ``chosen`` ``(…, N)`` nodes of one path in order, then arbitrary ones."""
        n = len(self)
        numbers = torch.arange(n, device=chosen.device).masked_fill(~chosen, n)
        return numbers.sort(-1).values[..., : self.levels].clamp(max=n - 1)


def _multi_hot(tokens: Tensor, mask: Tensor, like: Tensor) -> Tensor:
    """Return ``(…, V)`` 1 at the tokens ``(…, N)`` where the mask is set."""
    ones = mask.to(like.dtype)
    return ones.new_zeros(*tokens.shape[:-1], like.shape[-1]).scatter_reduce_(-1, tokens, ones, "amax")


def along_path(values: Tensor, path: Tensor, nodes: int, dim: int = 1) -> Tensor:
    """Reduce the last ``nodes`` entries along a dimension to those of ``path`` ``(B, k)``."""
    values = values.transpose(1, dim)
    rows, first = torch.arange(len(values), device=values.device)[:, None], values.shape[1] - nodes
    return torch.cat([values[:, :first], values[rows, path.to(values.device) + first]], dim=1).transpose(1, dim)
