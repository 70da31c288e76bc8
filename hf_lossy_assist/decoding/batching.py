"""The loop for a batch, whose rows accept different numbers of tokens and end apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..compat import move_inputs
from ..drafting.batches import BatchDrafter
from ..forwards.cache_rows import move_cache
from ..messages import Decision, Draft, Outcome, Strictness, Verification
from ..stats import BatchStatsRecorder, LossyStats
from .batch_layout import Frame, Move
from .buffers import TokenBuffer
from .loop import Decoding, Run
from .outputs import BatchOutputRecorder, GenerateLossyOutput


class BatchDecoding(Decoding):
    """Several sequences in the making.

    A round is one forward over all rows. After a round in which they kept different numbers of tokens, every row is
    shifted so that the newest tokens stand in one column again, and rejected tokens vanish from the caches; a row that
    has ended leaves. Where all rows agree nothing is moved.

    Parameters
    ----------
    run, ids, inputs, unseen
        As for :class:`~hf_lossy_assist.decoding.loop.Decoding`; the drafter is a
        :class:`~hf_lossy_assist.drafting.batches.BatchDrafter`.
    frame
        Where the rows stand.
    """

    def __init__(self, run: Run, ids: Tensor, inputs: dict[str, Any], unseen: int | None, frame: Frame) -> None:
        super().__init__(run, ids, inputs, unseen)
        self.frame = frame
        self.drafter: BatchDrafter = run.drafter
        self.record = BatchOutputRecorder(run.config, frame.batch, ids.shape[1])
        self.stats = BatchStatsRecorder(run.acceptor.is_lossless(run.config.do_sample), frame.batch)

    @property
    def asking(self) -> list[int]:
        """The rows that a forward of the target is for."""
        return self.frame.rows

    def draft(self) -> Draft:
        with self.stats.timed("drafting"):
            rooms = [self.stopping.room(length) - 1 for length in self.frame.lengths]
            if self.run.break_even.plain:
                rooms = [0] * len(rooms)
            draft = self.drafter.draft(self.ids, self.frame, rooms, self.run.acceptor)
            self.stats.draft_work(self.drafter.calls, self.drafter.tokens, self.frame.rows)
            return draft

    def verify(self, draft: Draft) -> Verification:
        with self.stats.timed("verifying"):
            verification, self.outputs, self.raw = self.verifier.verify(
                self.text.followed_by(draft.tokens),
                draft,
                self.inputs,
                first=self.outputs is None,
                new_tokens=self.unseen,
                last_position=None if draft.lengths is None else self.stopping.max_length - 1,
            )
            self.stats.target_call(self.verifier.sent, self.verifier.sent // len(self.frame.rows), self.asking)
            return verification

    def commit(self, draft: Draft, verification: Verification, decision: Decision) -> None:
        with self.stats.timed("deciding"):
            outcomes = Outcome.fetch(draft, decision)
        newest = decision.next_token[:, None]
        extended = self.text.followed_by(torch.cat([draft.tokens, newest], dim=-1))
        extended.scatter_(1, self.ids.shape[1] + decision.n_accepted[:, None], newest)
        committed, done = self._cut(outcomes, extended, verification.logits)
        self._count(draft, outcomes, committed)
        self.record.record(self.frame.rows, self.outputs, verification.logits, self.raw, committed, len(draft))
        accepted = [outcome.n_accepted for outcome in outcomes]
        self.drafter.learn(self.frame.rows, extended, verification.logits, accepted)
        if self.run.break_even.observe(sum(committed) / len(committed)):
            self.stats.gave_up()
        for row, ended in zip(self.frame.rows, done, strict=True):
            if ended:
                self.stats.ended(row)
        self.done = all(done)
        move = self.frame.grow(extended, committed, done)
        if not self.done:
            self._go_on(move, extended, len(draft), committed[0])

    def strictness(self, candidate: Tensor, drafted: int) -> Strictness | None:
        rows = [self.stats.rows[row] for row in self.frame.rows]
        return self.run.limits.strictness(
            candidate, drafted, [row.generated for row in rows], [row.lossy for row in rows]
        )

    def finish(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        ids, stats = self.frame.texts(), self.stats.finish()
        if not self.run.config.return_dict_in_generate:
            return ids, stats
        return self.record.finish(ids, stats), stats

    def _cut(self, outcomes: list[Outcome], extended: Tensor, logits: Tensor) -> tuple[list[int], list[bool]]:
        """Return how many of its tokens each row commits, and whether it ends with them."""
        cuts = []
        for i, (row, extra, outcome) in enumerate(zip(self.frame.rows, self.frame.extras, outcomes, strict=True)):
            count = len(outcome.tokens)
            text = extended[i : i + 1, extra : self.ids.shape[1] + count]
            scores = self.record.rows[row].scores_with(logits[i : i + 1], count)
            cuts.append(self.stopping.cut(text, outcome.tokens, scores))
        committed, done = zip(*cuts, strict=True)
        return list(committed), list(done)

    def _count(self, draft: Draft, outcomes: list[Outcome], committed: list[int]) -> None:
        for i, (row, outcome) in enumerate(zip(self.frame.rows, outcomes, strict=True)):
            self.stats.rows[row].round(
                draft.length(i), outcome.n_accepted, committed[i], outcome.lossless, outcome.kept_by
            )

    def _go_on(self, move: Move, extended: Tensor, drafted: int, committed: int) -> None:
        """Bring tokens, inputs and caches in line with the rows' new places."""
        if not move.changes:
            self.text.advance(committed)
            self.after_target(drafted, committed)
            return
        self.text = TokenBuffer(move.take(extended, self.frame.pad))
        move_cache(self.inputs["past_key_values"], move, move.width - 1)
        self.inputs = self.verifier.inputs.after(self.outputs, self.inputs, drafted + 1)
        move_inputs(self.inputs, move, extended)
        self.unseen = 1
        self.drafter.follow(move, self.inputs.get("attention_mask"))
