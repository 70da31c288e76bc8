"""The target over drafts that are trees: one forward with a mask of ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..messages import Draft, Verification
from ..sampling import process, process_paths, reads_text
from ..trees import Tree, TreeVerification
from .target import Target, Verifier


class TreeTarget(Target):
    """A target that is drafted trees for, or nothing.

    Parameters
    ----------
    forwards
        Its forwards.
    verifier
        Turns a forward's output into what rules read.
    """

    verifier: TreeVerifier

    def verify(self, candidate: Tensor, draft: Draft, charged: Sequence[float] = ()) -> Verification:
        if draft.tree is None:
            return super().verify(candidate, draft, charged)
        n, tree = len(draft), draft.tree
        room = self.room(candidate, n)
        with self.verifier.watching(n):
            outputs = self.forwards.run_tree(candidate, n + room, tree.ancestors, tree.depths)
        return self.verifier.judge_tree(candidate, draft, outputs, self.forwards.sent, charged)


@dataclass(eq=False)
class TreeVerifier(Verifier):
    """Says what the target thinks of trees."""

    def judge_tree(
        self, candidate: Tensor, draft: Draft, outputs: Any, sent: int, charged: Sequence[float] = ()
    ) -> TreeVerification:
        """Process what a forward over ``candidate`` ``(B, L + N)`` has returned into what rules read."""
        tree = draft.tree
        clean, dropped = self.split(outputs.logits, len(draft))
        raw = clean.to(device=candidate.device, dtype=torch.float32)
        logits = self._process(candidate, tree, raw.clone() if self.keep_raw else raw)
        return TreeVerification(
            tree,
            draft.tokens,
            logits,
            do_sample=self.do_sample,
            randomness=self.randomness,
            hidden=None if self.hook is None else self.hook.hidden.to(logits.device),
            dropped_logits=None if dropped is None else self._at_parents(candidate, tree, dropped.to(logits.device)),
            draft_hidden=draft.hidden,
            outputs=outputs,
            raw_logits=raw if self.keep_raw else None,
            sent=sent,
            charged=charged,
        )

    def _at_parents(self, candidate: Tensor, tree: Tree, dropped: Tensor) -> Tensor:
        """Return ``(B, K, N, V)`` processed logits of dropped heads at the nodes' parents.

        ``dropped`` ``(B, K, N, V)`` is about the newest committed token and all nodes but the last, which has no child.
        """
        if reads_text(self.processors):
            last = torch.zeros_like(dropped[:, :, :1])
            paths = torch.cat([dropped.float(), last], dim=2).unbind(1)
            dropped = torch.stack([self._process(candidate, tree, path) for path in paths], dim=1)
        else:
            dropped = process_paths(self.processors, candidate[:, :-1], dropped)
        return tree.at_parents(dropped.transpose(1, 2)).transpose(1, 2)

    def _process(self, candidate: Tensor, tree: Tree, logits: Tensor) -> Tensor:
        """Return the processed ``logits`` ``(B, N + 1, V)``, of the newest committed token and every node.

        Processors that look at texts see each node's path as its text. How many nodes there are of a depth, and so
        which can be shown together, has to be known for that.
        """
        if not reads_text(self.processors):
            return process(self.processors, candidate, logits)
        n = len(tree)
        text, nodes = candidate[:, :-n], candidate[:, -n:]
        tokens = nodes[tree.rows[..., None], tree.paths]  # (B, N, levels)
        processed = torch.empty_like(logits)
        processed[:, 0] = self.processors(text.clone(), logits[:, 0].clone())
        depths = tree.depths.tolist()
        for depth in range(1, tree.levels + 1):
            at = [[i for i, own in enumerate(row) if own == depth] for row in depths]
            for j in range(max(map(len, at))):
                columns = [row[j] if j < len(row) else 0 for row in at]
                there = [i for i, row in enumerate(at) if j < len(row)]
                every = list(range(len(at)))
                shown = torch.cat([text, tokens[every, columns, :depth]], dim=1)
                result = self.processors(shown, logits[every, [i + 1 for i in columns]])
                processed[there, [columns[i] + 1 for i in there]] = result[there]
        return processed
