"""The loop: draft → verify → accept → commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from ..acceptors import Acceptor, decide
from ..commit import Commit
from ..compat import unfinished
from ..drafting import Drafter
from ..inspection.inspector import Inspector
from ..messages import Decision, Draft, Verification
from ..stats import LossyStats
from ..verification.target import Target
from .batch_layout import BatchLayout
from .break_even import AlwaysDraft, BreakEven
from .buffers import TokenBuffer
from .outputs import GenerateLossyOutput, OutputRecorder
from .progress import Progress
from .row_decision import RowDecision


@dataclass(frozen=True, eq=False)
class Run:
    """Who takes part in a call.

    Attributes
    ----------
    target, drafter, acceptor
        What verifies, what drafts, and the rule.
    progress
        Where tokens become part of the output.
    outputs
        Collects what the caller asked for.
    break_even
        Says when to decode without a draft.
    inspector
        Notes what the models say about every token; None where nobody asked.
    synced
        Whether every process has to run a forward of the target in every round, until all have finished.
    """

    target: Target
    drafter: Drafter
    acceptor: Acceptor
    progress: Progress
    outputs: OutputRecorder
    break_even: BreakEven | AlwaysDraft
    inspector: Inspector | None = None
    synced: bool = False


class Decoding:
    """Sequences in the making: the rows of a batch, or a batch of one.

    A round is one forward of the target over all rows. After a round in which they kept different numbers of tokens,
    every row is shifted so that the newest tokens stand in one column again, and rejected tokens vanish from the
    caches; a row that has ended leaves. Where all rows agree, and in a batch of one, nothing is moved.

    Parameters
    ----------
    run
        Who takes part.
    ids
        ``(B, L)`` prompts.
    layout
        Where the rows stand.
    """

    def __init__(self, run: Run, ids: Tensor, layout: BatchLayout) -> None:
        self.run = run
        self.text = TokenBuffer(ids)
        self.layout = layout
        self.done = False

    @property
    def model(self) -> PreTrainedModel:
        """The target's model."""
        return self.run.target.model

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Run rounds until every row ends; return what ``generate()`` is to return, and the statistics."""
        with self.in_use():
            while unfinished(self.model, self.done, self.run.synced, self.text.ids.device):
                if self.done:
                    self.keep_up()
                else:
                    self.round()
            return self.finish()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, rounds may be run."""
        with self.run.target.in_use(), self.run.drafter.in_use():
            yield

    def round(self) -> None:
        """Draft, verify, accept, commit."""
        draft = self.draft()
        candidate = self.text.with_draft(draft.tokens)
        if not draft.undecided_rows:  # all texts have ended in tokens that are committed without the target
            self.keep_up()
            self.commit(draft, None, None)
            return
        verification = self.verify(draft, candidate)
        decision = self.accept(draft, candidate, verification)
        self.commit(draft, verification, decision)

    def keep_up(self) -> None:
        """Run a forward for nothing where processes that share weights have to run as many as the slowest."""
        if self.run.synced:
            self.run.target.idle(self.text.ids)

    def draft(self) -> Draft:
        """Ask the drafter for a proposal."""
        stats, rows = self.run.progress.stats, self.layout.rows
        with stats.timed("drafting"):
            if self.run.break_even.plain:
                return Draft.empty(self.text.ids)
            rooms = self.run.target.rooms(self.text.length, self.run.progress.rooms(rows))
            draft = self.run.drafter.propose(self.text.ids, self.layout, rooms)
            stats.draft_work(draft.cost, rows)
            return draft

    def verify(self, draft: Draft, candidate: Tensor) -> Verification:
        """Run the target over the proposal at the end of ``candidate`` ``(B, W + n)``."""
        stats, rows = self.run.progress.stats, self.layout.rows
        with stats.timed("verifying"):
            verification = self.run.target.verify(candidate, draft, [stats.rows[row].charged for row in rows])
            stats.target_call(verification.sent, [rows[i] for i in draft.undecided_rows], len(rows))
            return verification

    def accept(self, draft: Draft, candidate: Tensor, verification: Verification) -> Decision:
        """Apply the rule."""
        progress = self.run.progress
        with progress.stats.timed("deciding"):
            positions = progress.lossless_positions(candidate, len(draft), self.layout.rows)
            if positions is not None and draft.trusted is not None:
                positions = positions.after(draft.first_undecided)
            return decide(self.run.acceptor, verification, positions)

    def commit(self, draft: Draft, verification: Verification | None, decision: Decision | None) -> None:
        """Add the round's tokens to the texts, up to where these end."""
        progress, outputs, rows = self.run.progress, self.run.outputs, tuple(self.layout.rows)
        padding, width = tuple(self.layout.left_padding), self.text.length
        decisions, extended = self._fetch(draft, decision)
        if self.run.inspector is not None:
            decisions = self.run.inspector.judged(draft, verification, decision, decisions)
        if outputs.wanted:  # which no rule that trusts tokens can have
            self._record(verification, decision, [len(x.tokens) for x in decisions], len(draft))
        progress.commit(rows, [x.tokens[x.trusted :] for x in decisions], outputs.scores_upto)
        counts = self._count(draft, decisions, rows)
        ended = [progress.ended(row) for row in rows]
        self.done = all(ended)
        commit = Commit(
            ids=extended,
            start=width,
            drafted=len(draft),
            accepted=tuple(x.trusted + x.n_accepted for x in decisions),
            counts=counts,
            rows=rows,
            padding=padding,
            verification=verification,
            shift=self.layout.grow(extended, counts, ended),
            path=None if decision is None else decision.path,
        )
        self._follow(commit)
        if self.run.break_even.observe(sum(counts) / len(counts)):
            progress.stats.gave_up()

    def finish(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Return what ``generate()`` is to return, and the statistics."""
        progress, outputs = self.run.progress, self.run.outputs
        if progress.streamer is not None:
            progress.streamer.end()
        prompt, rows = progress.stopping.prompt, range(self.layout.batch)
        for row in rows:  # some may have been cut back after they had ended
            progress.stats.rows[row].cut(progress.generated(row))
            outputs.cut(row, progress.generated(row))
        texts = self.layout.texts(self.text.ids, [prompt + progress.generated(row) for row in rows])
        if self.layout.batch == 1:
            self.run.target.forwards.settle(texts)
        progress.stats.flops = self.run.drafter.flops(self.model, texts.shape[1], progress.stats)
        stats = progress.stats.finish()
        if not outputs.as_dict:
            return texts, stats
        return outputs.finish(texts, stats, self.run.target.carried if len(rows) == 1 else {}), stats

    def _fetch(self, draft: Draft, decision: Decision | None) -> tuple[list[RowDecision], Tensor]:
        """Bring a decision to the host; return it with the texts and all of the round's tokens ``(B, W + n + 1)``."""
        if decision is None:
            return RowDecision.of_trusted(draft), self.text.with_draft(draft.tokens)
        with self.run.progress.stats.timed("deciding"):
            decisions = RowDecision.fetch(draft, decision)
        kept = [x.trusted + x.n_accepted for x in decisions]
        return decisions, self.text.with_next(len(draft), kept, decision.next_token)

    def _record(
        self, verification: Verification, decision: Decision | None, counts: Sequence[int], drafted: int
    ) -> None:
        """Take what the caller wants to see of the first ``counts`` tokens of each row."""
        self.run.outputs.record(self.layout.rows, verification, counts, drafted)

    def _count(self, draft: Draft, decisions: list[RowDecision], rows: tuple[int, ...]) -> tuple[int, ...]:
        """Take the round into the statistics; return by how many tokens each text has grown."""
        progress, counts = self.run.progress, []
        trusting = None if draft.trusted is None else self.run.acceptor.run_ahead.rule
        for i, (row, decision) in enumerate(zip(rows, decisions, strict=True)):
            own, generated = progress.stats.rows[row], progress.generated(row)
            counts.append(generated - own.generated)  # below zero where a row that was ahead is cut back
            own.add(decision, draft.undecided_in(i), max(0, counts[-1]), trusting)
            own.cut(generated)
            progress.show_fates(own.trace[generated - max(0, counts[-1]) :])
            if progress.ended(row):
                progress.stats.end(row)
        return tuple(counts)

    def _follow(self, commit: Commit) -> None:
        """Bring text, target and drafter in line with what has been committed."""
        if commit.shift is not None:
            self.text = TokenBuffer(commit.shift.take(commit.ids, self.layout.pad))
        elif not self.done or len(commit.counts) == 1:
            self.text.advance(commit.counts[0])
        else:
            return
        self.run.target.keep(commit)
        self.run.drafter.observe(commit)
