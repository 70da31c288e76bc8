"""One path of a tree stays: the next forward is that of a model which has read nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hf_lossy_assist.compat import CACHE, PlainForwardInputs, new_cache
from hf_lossy_assist.core.messages import Commit, Verification
from hf_lossy_assist.core.texts import RowShift
from hf_lossy_assist.models.runner import DynamicCacheRunner
from hf_lossy_assist.models.target import Target
from tests.tiny_models import VOCAB, tiny

# Two branches of two tokens, interleaved as a tree is drafted: a0 b0 a1 b1.
PARENTS = torch.tensor([-1, -1, 0, 1])
WIDTH = 6


def tree_inputs(rows: int) -> dict[str, torch.Tensor]:
    """Return the mask ``(B, 1, W + 4, W + 4)`` in which a node sees the text and its ancestors, and positions."""
    n = len(PARENTS)
    ancestors = torch.eye(n, dtype=torch.bool)
    depth = torch.zeros(n, dtype=torch.long)
    for node, parent in enumerate(PARENTS.tolist()):
        if parent >= 0:
            ancestors[node] |= ancestors[parent]
            depth[node] = depth[parent] + 1
    sees = torch.ones(WIDTH + n, WIDTH + n).tril().bool()
    sees[WIDTH:, WIDTH:] = ancestors
    mask = torch.zeros(WIDTH + n, WIDTH + n).masked_fill(~sees, torch.finfo(torch.float32).min)
    positions = torch.cat([torch.arange(WIDTH), WIDTH + depth])
    return {"attention_mask": mask.expand(rows, 1, -1, -1), "position_ids": positions.expand(rows, -1)}


def setting(rows: int):
    model = tiny()
    generator = torch.Generator().manual_seed(rows)
    text = torch.randint(3, VOCAB, (rows, WIDTH), generator=generator)
    nodes = torch.randint(3, VOCAB, (rows, len(PARENTS)), generator=generator)
    carried = {
        CACHE: new_cache(model), "use_cache": True, "logits_to_keep": 1,
        "attention_mask": torch.ones_like(text), "position_ids": torch.arange(WIDTH).expand(rows, -1),
    }  # fmt: skip
    return model, text, nodes, DynamicCacheRunner(PlainForwardInputs(model), carried, WIDTH)


ANSWERED = Verification(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 2, VOCAB))
"""The target was asked; what it said does not matter to what is kept."""


def commit(ids: torch.Tensor, path: torch.Tensor, counts: tuple[int, ...], shift: RowShift | None = None) -> Commit:
    rows = tuple(range(len(counts)))
    return Commit(
        ids, WIDTH, len(PARENTS), tuple(n - 1 for n in counts), counts, rows, (0,) * len(rows), verification=ANSWERED,
        shift=shift, path=path,
    )  # fmt: skip


@pytest.mark.parametrize("branch", [0, 1])
@torch.no_grad()
def test_the_next_forward_is_that_of_the_path(branch: int):
    model, text, nodes, forwards = setting(1)
    path = torch.tensor([[branch, branch + 2]])
    out = forwards.run(torch.cat([text, nodes], dim=1), len(PARENTS) + 1, tree_inputs(1))
    alone = torch.cat([text, nodes.gather(1, path)], dim=1)
    plain = model(input_ids=alone, use_cache=False).logits
    torch.testing.assert_close(out.logits[:, -len(PARENTS) + branch + 2], plain[:, -1], atol=1e-5, rtol=1e-4)
    newest = torch.tensor([[9]])
    ids = torch.cat([alone, newest, newest.expand(-1, 2)], dim=1)
    Target(forwards, None).keep(commit(ids, path, (3,)))
    assert forwards.seen == WIDTH + 2
    following = torch.cat([alone, newest], dim=1)
    ours = forwards.run(following, 1).logits[:, -1]
    torch.testing.assert_close(ours, model(input_ids=following, use_cache=False).logits[:, -1], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_rows_keep_paths_of_different_lengths():
    model, text, nodes, forwards = setting(2)
    forwards.run(torch.cat([text, nodes], dim=1), len(PARENTS) + 1, tree_inputs(2))
    path = torch.tensor([[1, 3], [0, 0]])  # the second row keeps one token
    newest = torch.tensor([[9], [11]])
    kept = [torch.cat([text[0], nodes[0, [1, 3]], newest[0]]), torch.cat([text[1], nodes[1, [0]], newest[1]])]
    ids = torch.zeros(2, WIDTH + len(PARENTS) + 1, dtype=torch.long)
    for i, row in enumerate(kept):
        ids[i, : len(row)] = row
    shift = RowShift((0, 1), (WIDTH + 3, WIDTH + 2), WIDTH + 3, ids.device)
    moved = []
    Target(forwards, SimpleNamespace(hook=SimpleNamespace(move=moved.append))).keep(commit(ids, path, (3, 2), shift))
    assert [rows.tolist() for rows in moved] == [[0, 1]], "what reads the head moves with them"
    logits = forwards.run(shift.moved(ids, 0), 1).logits[:, -1]
    for i, row in enumerate(kept):
        plain = model(input_ids=row[None], use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits[i], plain, atol=1e-5, rtol=1e-4)
