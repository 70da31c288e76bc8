"""Drafts trees: the likeliest of many continuations at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..core.messages import Draft, DraftCost
from ..core.texts import Texts
from ..core.trees import Tree
from ..models.processing import alike, process
from ..models.runner import Nodes
from ..values import SETTINGS, Checked, bounded
from .chain import Sampler, Source, SourceDrafter
from .vocabulary import NEVER

LEAST, MOST = 0.01, 128
"""The least probability of the path to a node of an automatic tree, by the draft; the most nodes of one."""


_MOST_NODES = 1024


_Size = Annotated[int, bounded(1, _MOST_NODES, integer=True)]


@dataclass(frozen=True)
class TreeConfig(Checked):
    """How trees are drafted: ``tree`` in ``lossy_config``."""

    where = f" of `tree`{SETTINGS}"
    depth: _Size = 6  # tokens on the longest path; each takes a forward of the draft
    top_k: _Size = 8  # nodes to extend at each depth, and continuations of each node
    # how many of the likeliest nodes the target verifies; "auto" goes by their probability
    nodes: Annotated[int | str, bounded(1, _MOST_NODES, integer=True, word="auto")] = 32

    @property
    def candidates(self) -> int:
        """How many nodes there are to choose from."""
        return self.top_k + (self.depth - 1) * self.top_k**2


class TreeDrafter(SourceDrafter):
    """Drafts trees from the laws of a source, as EAGLE-2 does (arXiv 2406.16858, section 4).

    At every depth, one forward extends the ``top_k`` likeliest paths by their ``top_k`` likeliest tokens each; the
    likeliest of all nodes stay. The source then forgets the nodes: the next round's first forward reads the kept ones
    again, with the target's own token.
    """

    def __init__(self, source: Source, shape: TreeConfig, sampler: Sampler) -> None:
        super().__init__(source, sampler)
        self.shape = shape
        self._alike = alike(sampler.processors)

    def propose(self, ids: Tensor, layout: Texts | None, remaining: Sequence[int]) -> Draft:
        source = self.source
        before = source.calls, source.tokens
        depth = min(self.shape.depth, max(remaining) - 1, source.room(ids))
        if depth <= 0:
            return Draft.empty(ids)
        growing = _GrowingTree(self._children(self._processed(ids, source.logits(source.begin(ids)), None)))
        length, states = source.runner.seen, [source.hidden]
        for _ in range(1, depth):
            growing.choose(self.shape.top_k)
            logits = source.logits(growing.tokens, growing.tokens.shape[1], growing.nodes)
            growing.add(self._children(self._processed(ids, logits, growing)))
            states.append(source.hidden)
        source.rewind(length)
        deep_enough = tuple(min(depth, max(room - 1, 0)) for room in remaining)
        tokens, tree = growing.finish(self.shape.nodes, None if set(deep_enough) == {depth} else deep_enough)
        hidden = None
        if states[0] is not None:
            hidden = torch.cat(states, dim=1)[tree.rows.to(source.device), growing.predicted_by.to(source.device)]
        cost = DraftCost(source.calls - before[0], source.tokens - before[1])
        return Draft(tokens, None, hidden, tree=tree, cost=cost)

    def _processed(self, ids: Tensor, logits: Tensor, growing: _GrowingTree | None) -> Tensor:
        """Return the processed logits of q ``(B, k, V)`` after nodes."""
        processors = self.sampler.processors
        if growing is None or not self.sampler.reads_text:
            return process(processors, ids, logits)
        paths = growing.paths()
        if self._alike:
            texts = torch.cat([ids[:, None].expand(-1, paths.shape[1], -1), paths], dim=-1)
            return processors(texts.flatten(0, 1), logits.flatten(0, 1)).view_as(logits)
        shown = (torch.cat([ids, paths[:, i]], dim=1) for i in range(paths.shape[1]))
        return torch.stack([processors(text, logits[:, i]) for i, text in enumerate(shown)], dim=1)

    def _children(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens ``(B, k, top_k)`` after nodes, and their log q."""
        # Forbidden tokens get a finite log q, so that every tree has as many nodes.
        log_q, tokens = (
            logits.log_softmax(-1)
            .nan_to_num(nan=NEVER, neginf=NEVER)
            .clamp_(NEVER, 0)
            .topk(min(self.shape.top_k, logits.shape[-1]), dim=-1)
        )
        return tokens, log_q


class _GrowingTree:
    """A tree in the making, from the first tokens ``(B, 1, k)`` and their log q.

    Attributes
    ----------
    levels
        How many depths have chosen nodes.
    tokens
        ``(B, k)`` the nodes chosen last.
    came_from
        ``(B, k)`` each one's parent among the nodes chosen before.
    ancestors, depths
        ``(B, k, M)`` which of all chosen nodes each of them sees, and ``(B, M)`` how deep all are.
    """

    def __init__(self, first: tuple[Tensor, Tensor]) -> None:
        tokens, log_q = first
        self.levels = 0
        self._tokens, self._scores = [tokens.flatten(1)], [log_q.flatten(1)]
        self._parents = [torch.full_like(self._tokens[0], -1)]
        self._chosen: list[Tensor] = []  # per depth, the chosen nodes' tokens
        self._offset = 0  # where the last depth's nodes begin among all

    def choose(self, k: int) -> None:
        """Choose the likeliest nodes of the last depth, to be extended."""
        scores, tokens = self._scores[-1], self._tokens[-1]
        self._score, at = scores.topk(min(k, scores.shape[1]), dim=-1)
        k = at.shape[1]
        self.tokens, self._at = tokens.gather(-1, at), at + self._offset
        eye = torch.eye(k, dtype=torch.bool, device=at.device).expand(len(at), -1, -1)
        if self.levels:
            before = self.ancestors.shape[1]
            self.came_from = at // (scores.shape[1] // before)
            self.ancestors = torch.cat([self.ancestors[_rows(at), self.came_from], eye], dim=-1)
        else:
            self.came_from, self.ancestors = torch.zeros_like(at), eye
        self.levels += 1
        self._chosen.append(self.tokens)
        depths = [x.new_full((x.shape[1],), i) for i, x in enumerate(self._chosen, 1)]
        self.depths = torch.cat(depths).expand(len(at), -1)

    def add(self, more: tuple[Tensor, Tensor]) -> None:
        """Add the nodes that follow the chosen ones: tokens ``(B, k, c)`` and their log q."""
        tokens, log_q = more
        self._offset += self._tokens[-1].shape[1]
        self._tokens.append(tokens.flatten(1))
        self._scores.append((self._score[..., None] + log_q).flatten(1))
        self._parents.append(self._at[..., None].expand_as(tokens).flatten(1))

    @property
    def nodes(self) -> Nodes:
        """The nodes chosen last, as a forward reads them."""
        return Nodes(self.ancestors, self.depths, self.came_from)

    def paths(self) -> Tensor:
        """Return ``(B, k, levels)`` the tokens from the first to each node chosen last."""
        every = torch.cat(self._chosen, dim=-1)
        columns = self.ancestors.long().sort(dim=-1, descending=True, stable=True).indices[..., : self.levels]
        return every[_rows(every)[..., None], columns]

    def finish(self, nodes: int | str, remaining: tuple[int, ...] | None) -> tuple[Tensor, Tree]:
        """Return the likeliest ``nodes`` ``(B, N)``, each after its parent, and their shape.

        A node is at most as likely as its parent, which comes first among equals; so every kept node has its parent.
        ``"auto"`` takes as many nodes as one row has paths of a probability of at least :data:`LEAST`.
        """
        tokens, scores, parents = (torch.cat(x, dim=-1) for x in (self._tokens, self._scores, self._parents))
        if nodes == "auto":
            nodes = min(max(1, int((scores >= math.log(LEAST)).sum(-1).max())), MOST)
        self._kept = kept = scores.sort(dim=-1, descending=True, stable=True).indices[:, :nodes].sort(-1).values
        numbers = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
        number_of = torch.zeros_like(tokens).scatter_(-1, kept, numbers)
        old = parents.gather(-1, kept)
        new = torch.where(old < 0, -1, number_of.gather(-1, old.clamp(min=0)))
        return tokens.gather(-1, kept), Tree(new, min(len(self._tokens), kept.shape[1]), remaining)

    @property
    def predicted_by(self) -> Tensor:
        """``(B, N)`` which state predicted each node of the finished tree: 0 is the text's, others a chosen node's."""
        places, before = [torch.zeros_like(self._tokens[0][0])], 1
        for chosen, tokens in zip(self._chosen, self._tokens[1:], strict=True):
            k = chosen.shape[1]
            places.append(before + torch.arange(tokens.shape[1], device=tokens.device) // (tokens.shape[1] // k))
            before += k
        return torch.cat(places)[self._kept]


def _rows(values: Tensor) -> Tensor:
    return torch.arange(len(values), device=values.device)[:, None]
