"""The loop: draft → verify → accept → commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from .. import drafting
from ..acceptors import Acceptor, decide
from ..compat import CandidateGenerator, forward_inputs, idle_forward, recording, rollback, unfinished
from ..messages import Decision, Draft, Outcome, Strictness, Verification
from ..sampling import Randomness
from ..stats import LossyStats, StatsRecorder
from ..verification.verifier import Verifier
from .break_even import BreakEven
from .buffers import TokenBuffer
from .limits import BoundLimits
from .outputs import GenerateLossyOutput, OutputRecorder
from .stopping import Stopping


@dataclass(frozen=True, eq=False)
class Run:
    """Everything that stays the same over one call.

    Attributes
    ----------
    model
        The target.
    drafter
        Any candidate generator.
    acceptor
        The rule.
    processors, stopping_criteria, config, streamer
        As ``generate()`` prepared them.
    randomness
        The source of every random number.
    limits
        Where the run may be lossy.
    break_even
        Says when to decode without a draft.
    synced
        Whether every process has to run a forward of the target in every round, until all have finished.
    """

    model: PreTrainedModel
    drafter: CandidateGenerator
    acceptor: Acceptor
    processors: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    config: GenerationConfig
    streamer: BaseStreamer | None
    randomness: Randomness
    limits: BoundLimits
    break_even: BreakEven
    synced: bool = False


class Decoding:
    """One sequence in the making.

    Parameters
    ----------
    run
        Models, rule and settings.
    ids
        ``(1, L)`` prompt.
    inputs
        What ``generate()`` prepared for the target's forward; holds the cache.
    unseen
        How many tokens of the prompt the cache lacks; None where the whole prompt is to be sent.
    """

    def __init__(self, run: Run, ids: Tensor, inputs: dict[str, Any], unseen: int | None) -> None:
        self.run = run
        self.text = TokenBuffer(ids)
        self.inputs = inputs
        self.unseen = unseen
        self.outputs: Any = None
        self.raw: Tensor | None = None
        self.n_accepted = 0
        self.done = False
        self.record = OutputRecorder(run.config)
        self.stats = StatsRecorder(run.acceptor.is_lossless(run.config.do_sample))
        self.stopping = Stopping(run.config, run.stopping_criteria)
        self.verifier = self.new_verifier()

    @property
    def ids(self) -> Tensor:
        """``(B, L)`` the committed tokens, as a view."""
        return self.text.ids

    def new_verifier(self) -> Verifier:
        return Verifier(**self.verifying, inputs=forward_inputs(self.run.model, self.ids, self.inputs))

    @property
    def verifying(self) -> dict[str, Any]:
        """What any verifier of the run is to know."""
        return {
            "model": self.run.model,
            "processors": self.run.processors,
            "acceptor": self.run.acceptor,
            "do_sample": self.run.config.do_sample,
            "randomness": self.run.randomness,
            "keep_raw": self.record.wants("logits"),
        }

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Run rounds until the sequence ends; return what ``generate()`` is to return, and the statistics."""
        with recording(self.inputs["past_key_values"]):
            self.rounds()
        return self.finish()

    def rounds(self) -> None:
        while unfinished(self.run.model, self.done, self.run.synced, self.ids.device):
            if self.done:
                self.keep_up()
            else:
                self.round()

    def round(self) -> None:
        draft = self.draft()
        verification = self.verify(draft)
        decision = self.accept(verification, draft)
        self.commit(draft, verification, decision)

    def keep_up(self) -> None:
        """Run a forward for nothing where processes that share weights have to run as many as the slowest."""
        if self.run.synced:
            idle_forward(self.run.model, self.ids, self.inputs)

    def draft(self) -> Draft:
        with self.stats.timed("drafting"):
            context = {}
            if self.run.drafter.requires_model_outputs:
                context = {
                    "model_kwargs": self.inputs,
                    "model_outputs": self.outputs,
                    "is_first_iteration": self.outputs is None,
                    "n_last_matches": self.n_accepted,
                }
            room = self.stopping.room(self.ids.shape[1]) - 1  # the target adds a token of its own
            if self.run.break_even.plain:
                room = 0
            return drafting.draft(self.run.drafter, self.ids, room, self.run.acceptor, **context)

    def verify(self, draft: Draft) -> Verification:
        with self.stats.timed("verifying"):
            verification, self.outputs, self.raw = self.verifier.verify(
                self.text.followed_by(draft.tokens),
                draft,
                self.inputs,
                first=self.outputs is None,
                new_tokens=self.unseen,
                overrides=self.overrides(),
            )
            self.stats.target_call(self.verifier.sent)
            return verification

    def overrides(self) -> dict[str, Any]:
        """Return inputs of the target's forward that the drafter insists on."""
        drafter = self.run.drafter
        if not drafter.requires_model_outputs:
            return {}
        # All states, where the caller wants them too, and not only those that the drafter reads.
        wanted = {"output_hidden_states": True} if self.record.wants("hidden_states") else {}
        return drafter.model_kwargs_overrides | wanted

    def accept(self, verification: Verification, draft: Draft) -> Decision:
        with self.stats.timed("deciding"):
            strictness = None
            if not self.run.limits.limits.everywhere_lossy:
                strictness = self.strictness(self.text.followed_by(draft.tokens), len(draft))
            return decide(self.run.acceptor, verification, strictness)

    def commit(self, draft: Draft, verification: Verification, decision: Decision) -> None:
        with self.stats.timed("deciding"):
            (outcome,) = Outcome.fetch(draft, decision)
        self.n_accepted = outcome.n_accepted
        extended = self.text.ending_with(outcome.n_accepted, decision.next_token)
        scores = self.record.scores_with(verification.logits, len(outcome.tokens))
        committed, self.done = self.stopping.cut(extended, outcome.tokens, scores)
        self.text.advance(committed)
        self.after_target(len(draft), committed)
        self.record.record(self.outputs, verification.logits, self.raw, committed, len(draft))
        self.stats.round(len(draft), outcome.n_accepted, committed, outcome.lossless, outcome.kept_by)
        self.run.drafter.update_candidate_strategy(self.ids, verification.logits, outcome.n_accepted)
        if self.run.break_even.observe(committed):
            self.stats.gave_up()
        if self.run.streamer is not None:
            self.run.streamer.put(self.ids[:, -committed:].cpu())

    def after_target(self, drafted: int, committed: int, pending: int = 0) -> None:
        """Bring the target's inputs in line with what a forward over ``drafted`` tokens has led to."""
        # The newest token is never in the cache: it is the first input of the next forward.
        rollback(self.inputs["past_key_values"], drafted - (committed - 1))
        self.inputs = self.verifier.inputs.after(self.outputs, self.inputs, pending + committed)
        self.unseen = 1

    def strictness(self, candidate: Tensor, drafted: int) -> Strictness | None:
        """Say where the last ``drafted`` tokens of ``candidate`` have to be lossless."""
        return self.run.limits.strictness(candidate, drafted, [self.stats.generated], [self.stats.lossy])

    def finish(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        if self.run.streamer is not None:
            self.run.streamer.end()
        self.stats.draft_calls = getattr(self.run.drafter, "calls", 0)
        self.stats.draft_tokens = getattr(self.run.drafter, "tokens", 0)
        stats = self.stats.finish()
        if not self.run.config.return_dict_in_generate:
            return self.ids.clone(), stats
        inputs = self.inputs
        return self.record.finish(
            self.ids.clone(), inputs["past_key_values"], stats, inputs.get("encoder_outputs")
        ), stats
