"""SPRINTER's loop: run ahead → verify one token → accept or correct it → commit."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..drafting import RunningDrafter
from ..errors import LossyUnsupportedError
from ..messages import Decision, Draft, Outcome, Verification
from ..stats import LossyStats
from ..theory import DenseDecoder, verifier_flops
from .loop import Decoding, Run
from .outputs import GenerateLossyOutput


def count_flops(run: Run, drafter: RunningDrafter, length: int, verified: int, target_tokens: int) -> dict[str, float]:
    """Count all forwards, at the mean context of texts of a length; nothing where an architecture isn't known.

    Parameters
    ----------
    run, drafter
        The models, and what the draft has done.
    length
        Of the whole text.
    verified
        Tokens that the target decided.
    target_tokens
        Tokens that went through the target.
    """
    try:
        draft, target = (DenseDecoder.of_model(x).forward(1, length // 2) for x in (drafter.model, run.model))
    except LossyUnsupportedError:
        return {}
    head = drafter.proposals * verifier_flops(run.acceptor.run_ahead.head.config.width)
    return {
        "paper": head + drafter.tokens * draft.published + verified * target.published,
        "actual": head + drafter.tokens * draft.total + target_tokens * target.total,
    }


class SequentialDecoding(Decoding):
    """One sequence in the making, most of which the target does not see before it is committed.

    SPRINTER, algorithm 2. The drafter has to be a :class:`~hf_lossy_assist.drafting.RunningDrafter`.

    Parameters
    ----------
    run, ids, inputs, unseen
        As for :class:`~hf_lossy_assist.decoding.loop.Decoding`.
    """

    def __init__(self, run: Run, ids: Tensor, inputs: dict[str, Any], unseen: int | None) -> None:
        super().__init__(run, ids, inputs, unseen)
        self.request = run.acceptor.run_ahead
        self.ahead = 0

    def round(self) -> None:
        draft = self.draft()
        if self.done:  # the text ended before the head rejected a token
            self.stats.run(self.ahead)
            self.keep_up()
            return
        verification = self.verify(draft)
        decision = self.accept(verification, draft)
        self.commit(draft, verification, decision)

    def draft(self) -> Draft:
        """Commit tokens while the head lets them pass; return the first that it does not."""
        self.ahead = 0
        while True:
            with self.stats.timed("drafting"):
                token, logits, score = self.run.drafter.propose(self.ids)
                passes = self._may_pass(token) and bool(score > self.request.threshold)
            if not passes:
                return Draft(token, logits.float())
            self._commit_unseen(token)
            if self.done:
                return Draft(token[:, :0])

    def verify(self, draft: Draft) -> Verification:
        with self.stats.timed("verifying"):
            verification, self.outputs, _ = self.verifier.verify(
                self.text.followed_by(draft.tokens),
                draft,
                self.inputs,
                first=self.outputs is None,
                new_tokens=None if self.unseen is None else self.unseen + self.ahead,
                pending=self.ahead,
            )
            self.stats.target_call(self.verifier.sent)
            return verification

    def commit(self, draft: Draft, verification: Verification, decision: Decision) -> None:
        with self.stats.timed("deciding"):
            (outcome,) = Outcome.fetch(draft, decision)
        # The drafted token or its correction, and no bonus: with one, theorem 1 does not hold.
        self.done = self._extend(outcome.tokens[:1], draft.tokens if outcome.n_accepted else decision.next_token[None])
        self.after_target(drafted=1, committed=1, pending=self.ahead)
        if not outcome.n_accepted:
            self.run.drafter.forget_after(self.ids.shape[1] - 1)
        self.stats.round(1, outcome.n_accepted, 1, outcome.lossless, outcome.kept_by)
        self.stats.run(self.ahead)

    def finish(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        self.stats.head_calls = self.run.drafter.proposals
        stats = self.stats
        self.stats.flops = count_flops(
            self.run, self.run.drafter, self.ids.shape[1], stats.target_calls, stats.target_tokens
        )
        return super().finish()

    def _may_pass(self, token: Tensor) -> bool:
        if self.ahead >= self.request.max_draft - 1:
            return False
        strictness = self.strictness(self.text.followed_by(token), 1)
        return strictness is None or not bool(strictness.forbids_lossy.any())

    def _commit_unseen(self, token: Tensor) -> None:
        self.ahead += 1
        self.stats.unseen(self.run.acceptor.name)
        self.done = self._extend(token[0].tolist(), token)

    def _extend(self, tokens: list[int], tensor: Tensor) -> bool:
        """Add one token to the text and show it; return whether the text ends with it."""
        self.text.append(tensor)
        _, done = self.stopping.cut(self.ids, tokens, None)
        if self.run.streamer is not None:
            self.run.streamer.put(self.ids[:, -1:].cpu())
        return done
