"""The loop: draft → verify → accept → commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field

from torch import Tensor

from ..acceptors import Acceptor, decide
from ..compat import unfinished
from ..core.messages import Commit, Decision, Draft, RowDecision, Verification
from ..core.statistics import LossyStats
from ..core.texts import BatchLayout, TokenBuffer
from ..drafting import Drafter
from ..models.target import Target
from .inspector import with_scores
from .outputs import GenerateLossyOutput, OutputRecorder
from .pace import Pace
from .progress import Progress


@dataclass(eq=False)
class Decoding:
    """Decodes the rows of a batch, or a batch of one; a round runs one forward of the target over all rows.

    After a round in which rows kept different numbers of tokens, every row is shifted until the newest tokens stand in
    one column again, and rejected tokens vanish from the caches. A row that has ended leaves. Nothing moves where all
    rows agree, or in a batch of one.
    """

    prompts: InitVar[Tensor]  # (B, L)
    layout: BatchLayout  # where the rows stand
    target: Target
    drafter: Drafter
    acceptor: Acceptor
    progress: Progress  # where tokens become part of the output
    outputs: OutputRecorder  # collects the outputs that the caller asked for
    inspected: bool = False  # whether the models' probabilities of every token are recorded
    synced: bool = False  # whether every process runs a forward of the target in every round, until all have finished
    done: bool = field(default=False, init=False)

    def __post_init__(self, prompts: Tensor) -> None:
        self.text = TokenBuffer(prompts)
        self.pace = Pace(prompts.device)

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Run rounds until every row ends; return the output of ``generate()``, and the statistics."""
        with self.in_use():
            while unfinished(self.target.model, self.done, self.synced, self.text.ids.device):
                if self.done:
                    self._keep_up()
                else:
                    self.round()
            return self.finish()

    def round(self) -> None:
        self.pace.begin()
        draft = self.draft()
        self.pace.drafted()
        candidate = self.text.with_draft(draft.tokens)
        verification = decision = None
        if draft.undecided_rows:
            verification = self.verify(draft, candidate)
            decision = self.accept(draft, candidate, verification)
        else:  # all texts have ended in unverified tokens
            self._keep_up()
        self.commit(draft, verification, decision)

    def draft(self) -> Draft:
        stats, rows = self.progress.stats, self.layout.rows
        with stats.timed("drafting"):
            remaining = self.target.remaining(self.text.length, self.progress.remaining(rows))
            draft = self.drafter.propose(self.text.ids, self.layout, remaining)
            stats.draft_work(draft.cost, rows)
            return draft

    def verify(self, draft: Draft, candidate: Tensor) -> Verification:
        stats, rows = self.progress.stats, self.layout.rows
        with stats.timed("verifying"):
            verification = self.target.verify(candidate, draft, [stats.rows[row].charged for row in rows])
            stats.target_call(verification.sent, [rows[i] for i in draft.undecided_rows], len(rows))
            return verification

    def accept(self, draft: Draft, candidate: Tensor, verification: Verification) -> Decision:
        with self.progress.stats.timed("deciding"):
            positions = self.progress.lossless_positions(candidate, draft.shape, self.layout.rows)
            if positions is not None and draft.unverified is not None:
                positions = positions.after(draft.first_undecided)
            return decide(self.acceptor, verification, positions)

    def commit(self, draft: Draft, verification: Verification | None, decision: Decision | None) -> None:
        progress, rows, padding = self.progress, tuple(self.layout.rows), tuple(self.layout.left_padding)
        start = self.text.length
        decisions, extended = self._to_host(draft, decision)
        if self.inspected:
            decisions = with_scores(decisions, self.acceptor, draft, verification, decision)
        if self.outputs.wanted:  # never with a rule that commits unverified tokens
            chain = verification.along(decision.path)
            self.outputs.record(rows, chain, [len(x.tokens) for x in decisions], len(chain))
        progress.commit(rows, [x.tokens[x.unverified :] for x in decisions], self.outputs.scores_upto)
        counts = self._count(draft, decisions, rows)
        ended = [progress.ended(row) for row in rows]
        self.done = all(ended)
        commit = Commit(
            ids=extended,
            start=start,
            drafted=len(draft),
            accepted=tuple(x.unverified + x.n_accepted for x in decisions),
            counts=counts,
            rows=rows,
            padding=padding,
            verification=verification,
            shift=self.layout.grow(extended, counts, ended),
            path=None if decision is None else decision.path,
        )
        self._follow(commit)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.target.runner.in_use(), self.drafter.in_use():
            yield

    def _keep_up(self) -> None:
        """Run a dummy forward, to stay in step with the other ranks."""
        if self.synced:
            self.target.idle(self.text.ids)

    def finish(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        progress, outputs = self.progress, self.outputs
        if progress.streamer is not None:
            progress.streamer.end()
        prompt, rows = progress.stopping.prompt, range(self.layout.batch)
        for row in rows:  # stopping may have cut some back after their end
            progress.stats.rows[row].cut(progress.generated(row))
            outputs.cut(row, progress.generated(row))
        texts = self.layout.texts(self.text.ids, [prompt + progress.generated(row) for row in rows])
        if self.layout.batch == 1:
            self.target.runner.settle(texts)
        progress.stats.flops = self.drafter.flops(self.target.model, texts.shape[1], progress.stats)
        stats = progress.stats.finish()
        self.pace.warn_of_loss(self.target.model, max(map(progress.generated, rows)))
        if not outputs.as_dict:
            return texts, stats
        return outputs.finish(texts, stats, self.target.carried if len(rows) == 1 else {}), stats

    def _to_host(self, draft: Draft, decision: Decision | None) -> tuple[list[RowDecision], Tensor]:
        """Bring a decision to the host; return it with the texts and all of the round's tokens ``(B, W + n + 1)``."""
        if decision is None:
            rows = zip(draft.tokens.tolist(), draft.unverified, strict=True)
            decisions = [RowDecision.without_target(tokens[:count]) for tokens, count in rows]
            return decisions, self.text.with_draft(draft.tokens)
        with self.progress.stats.timed("deciding"):
            decisions = decision.to_host(draft)
        kept, drafted = [x.unverified + x.n_accepted for x in decisions], draft.tokens
        if decision.path is not None:
            drafted = decision.along_path(drafted)
            self.text.with_draft(drafted)  # replaces the trees
        return decisions, self.text.with_next(drafted.shape[1], kept, decision.next_token)

    def _count(self, draft: Draft, decisions: list[RowDecision], rows: tuple[int, ...]) -> tuple[int, ...]:
        """Add the round to the statistics; return by how many tokens each text has grown."""
        progress, counts = self.progress, []
        unverified_by = None if draft.unverified is None else self.acceptor.unverified_drafting.rule
        for i, (row, decision) in enumerate(zip(rows, decisions, strict=True)):
            own, generated = progress.stats.rows[row], progress.generated(row)
            counts.append(generated - own.generated)  # below zero where stopping has cut the row back
            own.add(decision, draft.undecided_in(i), max(0, counts[-1]), unverified_by)
            own.cut(generated)
            progress.show_statuses(own.trace[generated - max(0, counts[-1]) :])
            if progress.ended(row):
                progress.stats.end(row)
        return tuple(counts)

    def _follow(self, commit: Commit) -> None:
        if commit.shift is not None:
            self.text = TokenBuffer(commit.shift.take(commit.ids, self.layout.pad))
        elif not self.done or len(commit.counts) == 1:
            self.text.advance(commit.counts[0])
        else:
            return
        self.target.keep(commit)
        self.drafter.observe(commit)
