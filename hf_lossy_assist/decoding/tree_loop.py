"""The loop over drafts that are trees: of each, the path that stays is what a chain would have been."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..acceptors.tree_decision import decide_tree
from ..messages import Decision, Draft, Verification
from .loop import Decoding
from .row_decision import RowDecision


class TreeDecoding(Decoding):
    """Sequences in the making by rounds whose drafts are trees, or nothing.

    Parameters
    ----------
    run, ids, layout
        As for :class:`Decoding`.
    """

    def accept(self, draft: Draft, candidate: Tensor, verification: Verification) -> Decision:
        if draft.tree is None:
            return super().accept(draft, candidate, verification)
        progress = self.run.progress
        with progress.stats.timed("deciding"):
            positions = progress.lossless_nodes(candidate, draft.tree, self.layout.rows)
            return decide_tree(self.run.acceptor, verification, positions)

    def _fetch(self, draft: Draft, decision: Decision | None) -> tuple[list[RowDecision], Tensor]:
        if draft.tree is None:
            return super()._fetch(draft, decision)
        tokens = draft.tokens.gather(-1, decision.path)
        with self.run.progress.stats.timed("deciding"):
            decisions = decision.fetch(tokens)
        self.text.with_draft(tokens)  # in the place of the trees
        kept = [x.n_accepted for x in decisions]
        return decisions, self.text.with_next(tokens.shape[1], kept, decision.next_token)

    def _record(
        self, verification: Verification, decision: Decision | None, counts: Sequence[int], drafted: int
    ) -> None:
        if decision is not None and decision.path is not None:
            verification, drafted = verification.along(decision.path), decision.path.shape[1]
        super()._record(verification, decision, counts, drafted)
