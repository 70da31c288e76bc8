"""SPRINTER's loop for a batch, whose rows run ahead apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..acceptors import decide
from ..messages import Decision, Draft, Outcome, Strictness, Verification
from ..stats import LossyStats
from .batch_layout import Frame
from .batching import BatchDecoding
from .loop import Run
from .outputs import GenerateLossyOutput
from .sequential import count_flops


class SequentialBatchDecoding(BatchDecoding):
    """Several sequences in the making, most of which the target does not see before they are committed.

    Every row runs until its head rejects a token; rows that wait for the slowest are drafted on for nothing. Then one
    forward of the target decides each row's rejected token. The drafter has to be a
    :class:`~hf_lossy_assist.drafting.RunningDrafter` for all rows.

    Parameters
    ----------
    run, ids, inputs, unseen, frame
        As for :class:`~hf_lossy_assist.decoding.batching.BatchDecoding`.
    """

    def __init__(self, run: Run, ids: Tensor, inputs: dict[str, Any], unseen: int | None, frame: Frame) -> None:
        super().__init__(run, ids, inputs, unseen, frame)
        self.request = run.acceptor.run_ahead
        self.runner = run.drafter.drafter
        self.ahead: list[int] = []
        self.ended: list[bool] = []

    @property
    def asking(self) -> list[int]:
        return [row for row, ended in zip(self.frame.rows, self.ended, strict=True) if not ended]

    def round(self) -> None:
        draft = self.draft()
        if all(self.ended):  # no row is left that the target has to decide
            self._conclude(self.text.followed_by(draft.tokens))
            self.keep_up()
            return
        verification = self.verify(draft)
        decision = self.accept(verification, draft)
        self.commit(draft, verification, decision)

    def draft(self) -> Draft:
        """Draft until every row has a token that does not pass, or has ended."""
        rows = len(self.frame.rows)
        self.ahead, self.ended = [0] * rows, [False] * rows
        running, width, logits = [True] * rows, self.text.length, []
        with self.stats.timed("drafting"):
            while any(running):
                token, law, score = self.runner.propose(self.ids)
                self.text.append(token)
                logits.append(law)
                for i, (drafted, passes) in enumerate(self._fetch(self.ids, score)):
                    running[i] = running[i] and passes and self._pass(i, drafted, self.ids)
        self.stats.draft_work(self.runner.calls, self.runner.tokens, self.frame.rows)
        lengths = tuple(a + (not ended) for a, ended in zip(self.ahead, self.ended, strict=True))
        tokens = self.ids[:, width:].clone()
        self.text.retreat(width)  # nothing is committed yet
        return Draft(tokens, torch.cat(logits, dim=1).float(), lengths=lengths)

    def accept(self, verification: Verification, draft: Draft) -> Decision:
        with self.stats.timed("deciding"):
            at = torch.tensor([min(a, len(draft) - 1) for a in self.ahead], device=self.ids.device)
            strictness = self._strictness_over(self.text.followed_by(draft.tokens), len(draft))
            if strictness is not None:
                allowance = strictness.allowance
                strictness = Strictness(
                    strictness.positions.gather(1, at[:, None]),
                    None if allowance is None else allowance.gather(1, at[:, None]),
                )
            return decide(self.run.acceptor, verification.at(at), strictness)

    def commit(self, draft: Draft, verification: Verification, decision: Decision) -> None:
        width, n = self.ids.shape[1], len(draft)
        at = torch.tensor([min(a, n - 1) for a in self.ahead], device=self.ids.device)[:, None]
        drafted = draft.tokens.gather(1, at)
        with self.stats.timed("deciding"):
            outcomes = Outcome.fetch(Draft(drafted), decision)
        # The drafted token or its correction, and no bonus: with one, theorem 1 does not hold.
        decided = torch.where(decision.n_accepted[:, None] > 0, drafted, decision.next_token[:, None])
        going = torch.tensor([not ended for ended in self.ended], device=self.ids.device)[:, None]
        tokens = draft.tokens.scatter(1, at, torch.where(going, decided, drafted))
        extended = self.text.followed_by(torch.cat([tokens, tokens[:, :1]], dim=-1))
        committed, done = list(self.ahead), list(self.ended)
        for i, (row, outcome) in enumerate(zip(self.frame.rows, outcomes, strict=True)):
            self.stats.rows[row].run(self.ahead[i])
            if not done[i]:
                committed[i] += 1
                done[i] = self._ends(i, outcome.tokens[0], extended, width + committed[i])
                self.stats.rows[row].round(1, outcome.n_accepted, 1, outcome.lossless, outcome.kept_by)
            if done[i]:
                self.stats.ended(row)
        self.done = all(done)
        whole = all(outcome.n_accepted for outcome in outcomes) and min(committed) == n
        move = self.frame.grow(extended, committed, done)
        if not self.done:
            if not whole:
                self.runner.forget_after(width + min(committed) - 1)
            self._go_on(move, extended, n, committed[0])

    def finish(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        shared = self.stats.shared
        shared.head_calls = self.runner.proposals
        verified = sum(row.rounds for row in self.stats.rows)
        length = self.frame.texts().shape[1]
        shared.flops = count_flops(self.run, self.runner, length, verified, shared.target_tokens)
        return super().finish()

    def _fetch(self, candidate: Tensor, score: Tensor) -> list[tuple[int, bool]]:
        """Bring every row's newest token over, and whether it may pass; the step's only synchronisation."""
        passes = score.to(candidate.device) > self.request.threshold
        # Rows that wait have been passed by, and do not matter here: the others have the same number of tokens ahead.
        if (strictness := self.strictness(candidate, 1)) is not None:
            passes = passes & ~strictness.forbids_lossy[:, 0]
        return [(token, bool(ok)) for token, ok in torch.stack([candidate[:, -1], passes.long()], dim=-1).tolist()]

    def _pass(self, i: int, token: int, candidate: Tensor) -> bool:
        """Commit a token of a row unseen, if it is not the target's turn; return whether the row goes on."""
        if self.ahead[i] >= self.request.max_draft - 1:
            return False
        self.ahead[i] += 1
        self.stats.rows[self.frame.rows[i]].unseen(self.run.acceptor.name)
        self.ended[i] = self._ends(i, token, candidate, candidate.shape[1])
        return not self.ended[i]

    def _ends(self, i: int, token: int, texts: Tensor, end: int) -> bool:
        """Tell whether a row's text, up to a slot, ends with its last token."""
        return self.stopping.cut(texts[i : i + 1, self.frame.extras[i] : end], [token], None)[1]

    def _strictness_over(self, candidate: Tensor, drafted: int) -> Strictness | None:
        """Say where the drafted tokens have to be lossless, those committed unseen being counted already."""
        rows = [self.stats.rows[row] for row in self.frame.rows]
        generated = [row.generated - a for row, a in zip(rows, self.ahead, strict=True)]
        return self.run.limits.strictness(candidate, drafted, generated, [row.lossy for row in rows])

    def _conclude(self, texts: Tensor) -> None:
        self.done = True
        for i, row in enumerate(self.frame.rows):
            self.stats.rows[row].run(self.ahead[i])
            self.stats.ended(row)
        self.frame.grow(texts, self.ahead, self.ended)
