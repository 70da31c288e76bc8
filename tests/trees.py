"""Random trees, and what the target might say about them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.trees import Tree


def random_tree(rows: int, nodes: int, generator: torch.Generator, depth: int = 4) -> Tree:
    """Return trees whose nodes follow any node before them, or none."""
    parents = torch.full((rows, nodes), -1)
    depths = torch.ones(rows, nodes)
    for row in range(rows):
        for node in range(1, nodes):
            parent = int(torch.randint(-1, node, (1,), generator=generator))
            if parent >= 0 and depths[row, parent] < depth:
                parents[row, node], depths[row, node] = parent, depths[row, parent] + 1
    return Tree(parents, depth)


def chain(rows: int, nodes: int) -> Tree:
    """Return trees of which every node follows the one before it."""
    return Tree(torch.arange(-1, nodes - 1).expand(rows, -1), nodes)


def path_to(tree: Tree, row: int, node: int) -> list[int]:
    """Return the nodes from the first to one of them."""
    path = []
    while node >= 0:
        path.insert(0, node)
        node = int(tree.parents[row, node])
    return path


def children_of(tree: Tree, row: int, node: int) -> list[int]:
    """Return the nodes after one of them, or after the text for -1."""
    return [i for i, parent in enumerate(tree.parents[row].tolist()) if parent == node]


def random_tokens(tree: Tree, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Return tokens ``(B, N)`` of which no two siblings have the same."""
    tokens = torch.zeros_like(tree.parents)
    for row in range(len(tokens)):
        for node in range(-1, len(tree)):
            siblings = children_of(tree, row, node)
            tokens[row, siblings] = torch.randperm(vocabulary, generator=generator)[: len(siblings)]
    return tokens


def verification(tree: Tree, tokens: Tensor, logits: Tensor, seed: int = 0, **others: Any) -> Verification:
    said = {"shape": tree, "logits_after": logits, "randomness": Randomness(seed), **others}
    return Verification(tokens, tree.positions(logits), **said)
