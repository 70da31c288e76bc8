"""Drafted trees are those of EAGLE-2's algorithm, run from text to text without any cache."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.drafting.tree import LEAST, TreeConfig, TreeDrafter
from hf_lossy_assist.generation.config import LossyConfig
from tests.eagle3_heads import random_head
from tests.generation.drafters.uncached import eagle3_logits
from tests.tiny_models import noisy_copy, padded, tiny
from tests.trees import path_to

parse = LossyConfig.from_fields

SHAPE = TreeConfig(depth=3, top_k=3, nodes=8)
LENGTHS = (4, 7, 5)


@torch.no_grad()
def found(log_q, shape: TreeConfig) -> dict[tuple[int, ...], float]:
    """Return the paths of the best tree and their log q; ``log_q`` gives the law after a path."""
    every: dict[tuple[int, ...], float] = {}
    going_on = {(): 0.0}
    for _ in range(shape.depth):
        level = {}
        for path, score in going_on.items():
            top = log_q(path).topk(shape.top_k)
            more = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            level |= {(*path, token): score + value for token, value in more}
        every |= level
        going_on = dict(sorted(level.items(), key=lambda item: -item[1])[: shape.top_k])
    return dict(sorted(every.items(), key=lambda item: -item[1])[: shape.nodes])


def compare(watch_drafts, log_q, target, draft, **more) -> int:
    """Decode, and compare every tree that is drafted with what is found; return how many were."""
    compared, width = [], max(LENGTHS)

    def comparing(draft, _, ids, layout, remaining):
        shape = replace(SHAPE, depth=min(SHAPE.depth, max(remaining) - 1)) if max(remaining) > 1 else None
        for i, padding in enumerate(layout.left_padding if draft.tree else ()):
            tokens = draft.tokens[i].tolist()
            paths = [tuple(tokens[j] for j in path_to(draft.tree, i, node)) for node in range(len(tokens))]
            text, begin = ids[i, padding:], width - LENGTHS[layout.rows[i]]  # the prompt's own padding
            wanted = found(lambda path, text=text, begin=begin: log_q(text, begin, path), shape)
            assert set(paths) == set(wanted)
            first = [wanted[path] for path in paths if len(path) == 1]
            assert first == sorted(first, reverse=True), "siblings stand in the order in which they are tried"
            compared.append(len(ids))

    watch_drafts(TreeDrafter, comparing)
    fields = {**padded(LENGTHS), "do_sample": False, "max_new_tokens": 16, "pad_token_id": 0, **more}
    texts = [set(row[width:].tolist()) for row in target.generate(**fields, eos_token_id=None)]
    own = [token for i, row in enumerate(texts) for token in row.difference(*texts[:i], *texts[i + 1 :])]
    if not own:
        pytest.skip("with these weights no row says what no other does, so that they can't end apart")
    target.generate(
        **fields, assistant_model=draft, lossy_mode="lossless",
        eos_token_id=own[-1], lossy_config={"tree": vars(SHAPE)},
    )  # fmt: skip
    assert len(set(compared)) > 1, "rows have ended, and left"
    return len(compared)


@pytest.mark.parametrize("more", [{}, {"no_repeat_ngram_size": 1}], ids=["plain", "processed"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_a_draft_model_s_trees(architecture, more, watch_drafts):
    target = tiny(architecture)
    draft = noisy_copy(target, 0.02)

    def log_q(text, padding, path):
        whole = torch.cat([text, torch.tensor(path, dtype=torch.long)])
        logits = draft(whole[None, padding:], use_cache=False).logits[0, -1]
        if more:
            logits[whole] = -torch.inf
        return logits.log_softmax(-1).clamp(min=-1e6)

    assert compare(watch_drafts, log_q, target=target, draft=draft, **more) > 5


def test_a_head_s_trees(watch_drafts):
    target, head = tiny("llama"), random_head(drafted=24)

    def log_q(text, padding, path):
        logits = eagle3_logits(target, head, text[padding:], torch.tensor([*path, 0]))[-1]
        return torch.full((64,), -1e6).index_copy(0, head.target_ids, logits.log_softmax(-1))

    assert compare(watch_drafts, log_q, target=target, draft=head) > 5


def test_what_is_equally_likely_has_its_parents():
    """A draft that is sure of everything: many a child is as likely as its parent."""
    target = tiny("llama")
    draft = noisy_copy(target, 0.0)
    with torch.no_grad():
        draft.lm_head.weight.mul_(1000)
    output = target.generate(
        **padded(), assistant_model=draft, lossy_mode="lossless", do_sample=False, max_new_tokens=24, eos_token_id=None,
        lossy_config={"tree": {"depth": 5, "top_k": 4, "nodes": 7}}, return_dict_in_generate=True,
    )  # fmt: skip
    assert output.lossy_stats.mean_accepted > 3


def test_an_automatic_tree_has_the_paths_that_one_row_finds_likely(watch_drafts):
    target, sizes = tiny("llama"), []
    draft = noisy_copy(target, 0.02)
    with torch.no_grad():
        draft.lm_head.weight.mul_(20)
    every = TreeConfig(depth=3, top_k=3, nodes=999)

    def log_q(text, path):
        whole = torch.cat([text, torch.tensor(path, dtype=torch.long)])
        return draft(whole[None], use_cache=False).logits[0, -1].log_softmax(-1)

    def counting(made, _, ids, layout, remaining):
        if max(remaining) > 3:
            texts = (row[padding:] for row, padding in zip(ids, layout.left_padding, strict=True))
            trees = [found(lambda path, text=text: log_q(text, path), every) for text in texts]
            sizes.append(len(made))
            assert sizes[-1] == max(1, *(sum(score >= math.log(LEAST) for score in tree.values()) for tree in trees))

    watch_drafts(TreeDrafter, counting)
    target.generate(
        **padded((6, 6)), assistant_model=draft, lossy_mode="lossless", do_sample=False, max_new_tokens=24,
        eos_token_id=None, lossy_config={"tree": {"depth": 3, "top_k": 3, "nodes": "auto"}},
    )  # fmt: skip
    assert len(set(sizes)) > 2


def test_the_defaults_are_written_out():
    assert parse("lossless", {"tree": {}}).tree == TreeConfig(depth=6, top_k=8, nodes=32)
    assert parse("lossless", {"tree": {"nodes": "auto"}}).tree == TreeConfig(nodes="auto")
    assert parse("lossless").tree is None


@pytest.mark.parametrize(
    ("named", "tree"),
    [("`depth`", {"depth": 0}), ("`top_k`", {"top_k": 1.5}), ("`nodes`", {"nodes": "many"}),
     ("`nodes`", {"nodes": True}), ("'depth'", {"dept": 3}), ("'tree'", 32)],
)  # fmt: skip
def test_a_shape_that_can_t_be_is_refused(named, tree):
    with pytest.raises(LossyValueError, match=named):
        parse("lossless", {"tree": tree})
