"""The loop: draft → verify → accept → commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..acceptors import Acceptor, decide
from ..compat.models import any_unfinished, idle_forward
from ..core.messages import Commit, Draft, RowDecision, TargetOutput, Verification
from ..core.recorders import StatsRecorder
from ..core.statistics import LossyStats
from ..core.texts import Texts
from ..drafting import Drafter
from ..models.target import Target
from .inspector import with_scores
from .outputs import GenerateLossyOutput, OutputRecorder
from .progress import Progress, TokenStatusStreamer
from .slow_drafts import warn_of_loss


@dataclass(eq=False)
class Decoding:
    """Decodes the rows of a batch, or a batch of one; a round runs one forward of the target over all rows.

    After a round in which rows kept different numbers of tokens, every row is shifted until the newest tokens stand in
    one column again, and rejected tokens vanish from the caches. A row that has ended leaves. Nothing moves where all
    rows agree, or in a batch of one.
    """

    texts: Texts  # the rows and their tokens
    target: Target
    drafter: Drafter
    acceptor: Acceptor
    progress: Progress  # says where texts end
    stats: StatsRecorder
    outputs: OutputRecorder  # collects the outputs that the caller asked for
    inspected: bool = False  # whether the models' probabilities of every token are recorded
    synced: bool = False  # whether every process runs a forward of the target in every round, until all have finished
    done: bool = field(default=False, init=False)

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Run rounds until every row ends; return the output of ``generate()``, and the statistics."""
        model = self.target.runner.model
        with self.in_use():
            # Other processes may still have texts to end.
            while any_unfinished(model, self.done, self.texts.device) if self.synced else not self.done:
                if self.done:
                    self._keep_up()
                else:
                    self.round()
            return self.finish()

    def round(self) -> None:
        self.stats.start()
        self.conclude(self.draft())

    def draft(self) -> Draft:
        texts = self.texts
        remaining = self.progress.remaining(texts.rows, self.target.room(texts.width) + 1)
        draft = self.drafter.propose(texts.ids, texts, remaining)
        self.stats.draft_work(draft.cost, texts.rows)
        self.stats.lap("drafting")
        return draft

    def verify(self, draft: Draft, candidate: Tensor, asking: Sequence[int]) -> tuple[Verification, TargetOutput]:
        """Run the target over a draft, which the rows ``asking`` wait for."""
        verification, output = self.target.verify(candidate, draft)
        if self.acceptor.has_budget:
            charged = [self.progress.charged[row] for row in self.texts.rows]
            verification = replace(verification, charged=charged)
        self.stats.target_call(self.target.runner.sent, asking, len(self.texts.rows))
        self.stats.lap("verifying")
        return verification, output

    def conclude(self, draft: Draft) -> None:
        """Verify a draft, decide about it, and commit what stays."""
        texts, rows, n = self.texts, self.texts.rows, len(draft)
        candidate = texts.with_draft(draft.tokens)
        verification, output = self.verify(draft, candidate, rows)
        positions = self.progress.lossless_positions(candidate, draft.shape, texts)
        decision = decide(self.acceptor, verification, positions)
        decisions, drafted, path = decision.to_host(draft), draft.tokens, decision.path
        if path is not None:
            drafted = decision.along_path(drafted)
            texts.with_draft(drafted)  # replaces the trees
        kept = [x.n_accepted for x in decisions]
        extended = texts.with_next(drafted.shape[1], kept, decision.next_token)
        self.stats.lap("deciding")
        if self.inspected:
            decisions = with_scores(decisions, self.acceptor, verification, decision)
        tokens = [x.tokens for x in decisions]
        if self.outputs.wanted:
            chain, along = verification.along(path), output.along(path, n)
            self.outputs.record(rows, chain.logits, along, [*map(len, tokens)], len(chain))
        counts = self.progress.commit(rows, tokens, self.outputs.scores_upto)
        self.count(rows, decisions, counts)
        self.follow(extended, n, kept, verification, output, path, tokens)

    def count(self, rows: Sequence[int], decisions: Sequence[RowDecision], counts: Sequence[int]) -> None:
        """Add decisions about rows to the statistics: so many of each one's tokens are in the output."""
        for row, decision, count in zip(rows, decisions, counts, strict=True):
            self.progress.lossy[row] += self.stats.rows[row].add(decision, count)
            self.progress.charged[row] += decision.charge

    def follow(
        self,
        extended: Tensor,
        drafted: int,
        kept: Sequence[int],
        verification: Verification | None = None,
        output: TargetOutput | None = None,
        path: Tensor | None = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> None:
        """Let texts, caches and the drafter follow the output.

        ``extended`` ``(B, W + n + 1)`` are the texts with all of a round's tokens: ``kept`` of ``drafted`` ones in each
        row, and the target's own. Each text has grown by the first of ``tokens``. ``verification`` and ``output`` are
        None if no row was verified this round.
        """
        texts, progress, rows = self.texts, self.progress, tuple(self.texts.rows)
        start, padding = texts.width, tuple(texts.left_padding)
        ended, lengths, counts = [], [], []
        for row, before in zip(rows, texts.lengths, strict=True):
            own, generated = self.stats.rows[row], progress.generated[row]
            count = max(0, texts.prompt + generated - before)  # a criterion may have cut more than the round
            if generated < len(own.records):  # a criterion has cut the text back
                own.cut(generated)
            if count and isinstance(progress.streamer, TokenStatusStreamer):
                progress.streamer.put_statuses([record.kind for record in own.records[-count:]])
            if progress.ended[row]:
                own.end(self.stats.seconds)
            counts.append(count)
            ended.append(progress.ended[row])
            lengths.append(texts.prompt + generated)
        self.done = all(ended)
        commit = Commit(
            ids=extended,
            start=start,
            drafted=drafted,
            accepted=tuple(kept),
            counts=tuple(counts),
            rows=rows,
            padding=padding,
            logits=None if verification is None else verification.logits,
            outputs=None if output is None else output.outputs,
            shift=texts.grow(extended, lengths, ended),
            path=path,
            tokens=tuple(tokens),
        )
        if not self.done or len(rows) == 1:
            self.target.follow(commit)
            self.drafter.observe(commit)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.target.runner.in_use(), self.drafter.in_use():
            try:
                yield
            except BaseException:
                self.target.runner.rewind(self.texts.width - 1)  # a caller's cache must not end in a rejected draft
                raise

    def _keep_up(self) -> None:
        """Run a dummy forward, to stay in step with the other ranks."""
        if self.synced:
            idle_forward(self.target.runner.model, self.texts.ids, self.target.runner.carried)

    def finish(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Return the output and the statistics."""
        texts, stats = self.close()
        one = len(texts) == 1
        if one:
            self.target.runner.settle(texts)
        if not self.outputs.as_dict:
            return texts, stats
        return self.outputs.finish(texts, stats, self.target.runner.carried if one else {}), stats

    def close(self, longest: int = 0) -> tuple[Tensor, LossyStats]:
        """Return the texts and the statistics; ``longest`` is the most tokens of a batch of which this is one row."""
        progress, stats, outputs = self.progress, self.stats, self.outputs
        if progress.streamer is not None:
            progress.streamer.end()
        generated = {row: progress.generated[row] for row in stats.rows}
        for row, count in generated.items():  # stopping may have cut some back after their end
            stats.rows[row].cut(count)
            outputs.cut(row, count)
        texts = self.texts.finish([self.texts.prompt + count for count in generated.values()])
        if outputs.wanted and (missing := longest - max(generated.values())) > 0:
            self._record_padding(texts, missing)
        result = stats.finish()
        warn_of_loss(self.target.runner.model, stats.laps, max(generated.values()), result.accepted)
        return texts, result

    def _record_padding(self, text: Tensor, count: int) -> None:
        """Record ``count`` more tokens after a row ``text`` ``(1, L)``, where plain generation reads padding."""
        self.target.runner.rewind(text.shape[1] - 1)
        draft = Draft(text.new_full((1, count - 1), self.texts.filler))
        verification, output = self.target.verify(torch.cat([text, draft.tokens], dim=1), draft)
        self.outputs.record([*self.stats.rows], verification.logits, output, [count], len(draft))
