"""A tree's properties are those that walking from node to node finds."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist.core.shapes import Chain
from tests.trees import chain, children_of, path_to, random_tokens, random_tree, verification

VOCABULARY = 12


@pytest.fixture(params=[0, 1, 2])
def generator(request) -> torch.Generator:
    return torch.Generator().manual_seed(request.param)


def test_a_node_is_judged_by_the_law_at_its_parent(generator):
    tree = random_tree(2, 9, generator)
    logits = torch.randn(2, 10, VOCABULARY, generator=generator)
    tokens = random_tokens(tree, VOCABULARY, generator)
    hidden = torch.randn(2, 10, 5, generator=generator)
    v = verification(tree, tokens, logits, do_sample=True, hidden=hidden)
    p = logits.softmax(-1)
    for row in range(2):
        for node in range(9):
            parent, x = int(tree.parents[row, node]) + 1, int(tokens[row, node])
            assert v.logits[row, node].equal(logits[row, parent])
            assert v.logit_x[row, node] == logits[row, parent, x]
            assert v.best[row, node] == logits[row, parent].argmax()
            assert v.shape.at_tokens(hidden)[row, node].equal(hidden[row, parent])
            torch.testing.assert_close(v.p_x[row, node], p[row, parent, x])
            path = path_to(tree, row, node)
            log_p = sum(p[row, int(tree.parents[row, i]) + 1, tokens[row, i]].log() for i in path)
            torch.testing.assert_close(v.log_p[row, node], log_p)
            siblings = children_of(tree, row, parent - 1)
            left = p[row, parent].clone()
            left[tokens[row, [i for i in siblings if i < node]]] = 0
            torch.testing.assert_close(v.ratio[row, node], left[x] / left.sum())
            rest = v.residual_distribution(torch.full((2,), node))[row]
            expected = p[row, parent].clone()
            expected[tokens[row, siblings]] = 0
            torch.testing.assert_close(rest, expected)
            assert v.q[row, node].nonzero()[:, 0].tolist() == sorted(tokens[row, siblings].tolist())
            assert v.proposed(torch.full((2,), node))[row].equal(v.q[row, node])


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_what_follows_a_node_is_one_path_of_matches(generator, count: int):
    tree = random_tree(3, 14, generator, depth=5)
    match = torch.rand(3, 14, generator=generator) < 0.7

    def followed(row: int, node: int, left: int) -> bool:
        return left == 0 or any(match[row, i] and followed(row, i, left - 1) for i in children_of(tree, row, node))

    expected = [[followed(row, node, count) for node in range(14)] for row in range(3)]
    assert tree.followed(match, count).tolist() == expected
    assert chain(3, 14).followed(match, count).equal(Chain(14, match.device).followed(match, count))
