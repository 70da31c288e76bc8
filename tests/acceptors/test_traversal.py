"""Traversal verification: the target's law exactly, and more kept than of chains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.acceptors import Lossless, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.trees import DrawnTree, Tree
from hf_lossy_assist.drafting.tree import DrawnTreeConfig
from tests.acceptors.fixtures import chi_square_p, count_texts, generate, law_of_texts, pooled
from tests.eagle3_heads import random_head
from tests.tiny_models import noisy_copy, tiny
from tests.trees import children_of

ROWS = 100_000
WORDS = 3


def parents_of(branches: tuple[int, ...]) -> list[int]:
    """Return each node's parent, depth after depth."""
    parents, last = [], [-1]
    for count in branches:
        parents += [node for node in last for _ in range(count)]
        last = list(range(len(parents) - len(last) * count, len(parents)))
    return parents


def laws(seed: int, depth: int) -> list[np.ndarray]:
    """Return random distributions after every text of 0, 1, … ``depth`` words: arrays ``(W, …, W)``."""
    draw = np.random.default_rng(seed)
    return [draw.dirichlet(np.full(WORDS, 0.7), size=(WORDS,) * n) for n in range(depth + 1)]


def drawn(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    return (rng.random(len(p))[:, None] > p.cumsum(-1)).sum(-1).clip(max=WORDS - 1)


def trees(branches: tuple[int, ...], p: list[np.ndarray], q: list[np.ndarray], rows: int, remaining=None):
    """Draw trees, and return the target's answer to them."""
    rng, parents = np.random.default_rng(7), parents_of(branches)
    texts: dict[int, tuple[np.ndarray, ...]] = {-1: ()}
    of_q = []
    for node, parent in enumerate(parents):
        law = q[len(texts[parent])][texts[parent]] if parent >= 0 else np.broadcast_to(q[0], (rows, WORDS))
        of_q.append(law)
        texts[node] = (*texts[parent], drawn(rng, law))
    after = [np.broadcast_to(p[0], (rows, WORDS)), *(p[len(texts[n])][texts[n]] for n in range(len(parents)))]
    tree = DrawnTree(torch.tensor(parents).expand(rows, -1), len(branches), remaining, branches)
    logits = torch.tensor(np.stack(after, 1)).float().log()
    return Verification(
        torch.tensor(np.stack([texts[n][-1] for n in range(len(parents))], 1)),
        tree.positions(logits), torch.tensor(np.stack(of_q, 1)).float().log(), do_sample=True,
        randomness=Randomness(3), shape=tree, logits_after=logits,
    )  # fmt: skip


def written(v: Verification, p: list[np.ndarray], depth: int) -> tuple[np.ndarray, float]:
    """Return how often each text of ``depth + 1`` words came out, completed by the target, and how many were kept."""
    decision = decide(Lossless(), v)
    rng, kept = np.random.default_rng(11), decision.n_accepted.numpy()
    path, text = v.tokens.gather(-1, decision.path).numpy(), np.zeros((len(kept), depth + 1), dtype=int)
    for i in range(depth + 1):
        own = drawn(rng, p[i][tuple(text[:, j] for j in range(i))] if i else np.broadcast_to(p[0], (len(kept), WORDS)))
        drafted = path[:, min(i, path.shape[1] - 1)]
        text[:, i] = np.where(i < kept, drafted, np.where(i == kept, decision.next_token.numpy(), own))
    places = WORDS ** np.arange(depth, -1, -1)
    return np.bincount(text @ places, minlength=WORDS ** (depth + 1)), float(kept.mean())


def joint(p: list[np.ndarray]) -> np.ndarray:
    law = p[0]
    for after in p[1:]:
        law = law[..., None] * after
    return law.reshape(-1)


@pytest.mark.parametrize("branches", [(3,), (1, 2), (2, 1), (2, 2), (3, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_texts_have_the_target_s_joint_law(branches: tuple[int, ...], seed: int):
    """The confidence is 99.999 %; the draft's law is told apart."""
    depth = len(branches)
    p, q = laws(seed, depth), laws(seed + 50, depth)
    counts, _ = written(trees(branches, p, q, ROWS), p, depth)
    assert chi_square_p(counts, joint(p)) > 1e-5
    assert chi_square_p(counts, joint([q[0], *p[1:]])) < 1e-9


def test_rows_with_less_room_have_the_target_s_law_too():
    p, q = laws(2, 3), laws(3, 3)
    v = trees((2, 2, 1), p, q, ROWS, tuple(range(4)) * (ROWS // 4))
    counts, _ = written(v, p, 3)
    assert chi_square_p(counts, joint(p)) > 1e-5
    kept = decide(Lossless(), v).n_accepted
    assert [int(kept[i::4].max()) for i in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_is_decided_as_a_whole(seed: int):
    """Branches of one are block verification, decision by decision."""
    p, q = laws(seed, 4), laws(seed + 9, 4)
    v = trees((1, 1, 1, 1), p, q, 2000)
    chain = Verification(v.tokens, v.logits_after, v.draft_logits, do_sample=True, randomness=Randomness(3))
    tree, block = decide(Lossless(), v), decide(Lossless("block"), chain)
    assert tree.n_accepted.tolist() == block.n_accepted.tolist()
    assert len(set(block.n_accepted.tolist())) == 5


@pytest.mark.parametrize("branches", [(2, 1), (2, 2, 2)])
def test_more_is_kept_than_of_chains(branches: tuple[int, ...]):
    """By more than five standard errors, of drafts half of which are like the target's."""
    depth = len(branches)
    p, other = laws(0, depth), laws(6, depth)
    q = [(a + b) / 2 for a, b in zip(p, other, strict=True)]
    tree, chain = (trees(b, p, q, ROWS) for b in (branches, (1,) * depth))
    kept, of_chain = written(tree, p, depth)[1], written(chain, p, depth)[1]
    error = (2 * depth**2 / 4 / ROWS) ** 0.5  # no number from 0 to `depth` varies more
    assert kept > of_chain + 5 * error


@pytest.mark.parametrize(
    ("kind", "branches", "k", "tokens"), [("model", "2x2", 4, 3), ("model", [2, 2, 1], 4, 4), ("head", "3x2", 16, 3)]
)
def test_texts_through_generate(kind: str, branches, k: int, tokens: int):
    """Texts of 4,000 rows, each token among the target's ``k`` likeliest; processors act on p and q."""
    target, ids = tiny("llama"), torch.full((4000, 3), 5)
    draft = noisy_copy(target, 0.1) if kind == "model" else random_head(drafted=48)
    run = target.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), assistant_model=draft, do_sample=True, top_k=k,
        lossy_mode="lossless", lossy_config={"seed": 3, "tree": {"branches": branches}}, max_new_tokens=tokens,
        return_dict_in_generate=True, eos_token_id=None,
    )  # fmt: skip
    texts, law = law_of_texts(target, [5, 5, 5], k, tokens)
    counts, law = pooled(count_texts(run.sequences[:, 3:], texts), law)
    assert len(law) > 50
    assert chi_square_p(counts, law) > 1e-5
    assert run.lossy_stats.lossless
    assert run.lossy_stats.accepted_lossy == 0 < run.lossy_stats.accepted < run.lossy_stats.drafted


def test_children_are_found_by_their_place():
    branches = (3, 2, 1)
    tree = DrawnTree(torch.tensor(parents_of(branches))[None], 3, None, branches)
    plain = Tree(tree.parents, 3)
    depths = [0, *plain.depths[0].tolist()]
    for node, depth in enumerate(depths, -1):
        assert list(tree.children(node, depth)) == children_of(plain, 0, node)


@pytest.mark.parametrize("branches", ["", "2x", [0, 1], [], 3, [2.5], [True], "40x40"])
def test_branches_that_can_t_be(branches):
    with pytest.raises(LossyValueError, match="`branches` of `tree` in `lossy_config` has to be numbers of children"):
        DrawnTreeConfig(branches)


def test_what_drawn_trees_can_t_be_used_with():
    target, draft = tiny(), tiny(seed=1)
    config = {"tree": {"branches": [2, 1]}}
    with pytest.raises(LossyUnsupportedError, match=r"the rule 'typical' judges .* one by one"):
        generate(target, draft, 3, ("typical", config), True)
    with pytest.raises(LossyUnsupportedError, match=r"`branches` .* but `do_sample` is False"):
        generate(target, draft, 3, ("lossless", config), False)
    with pytest.raises(LossyValueError, match="`tree` in `lossy_config`"):
        generate(target, draft, 3, ("lossless", {"tree": {"branches": [2], "depth": 3}}), True)
