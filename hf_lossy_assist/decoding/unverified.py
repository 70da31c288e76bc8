"""Rounds that begin with a run of tokens which the draft commits without the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..acceptors import decide
from ..core.limits import LosslessPositions
from ..core.messages import Decision, Draft, TargetOutput, Verification
from ..core.shapes import Chain
from ..core.statistics import TokenScores
from ..core.transfers import Look, looks_late, to_device
from ..drafting.run_ahead import RunAheadDrafter
from .inspector import with_scores
from .loop import Decoding


@dataclass(frozen=True, eq=False)
class Run:
    """The tokens of a run, and the one after it in every row that waits for the target."""

    tokens: Tensor  # (B, n)
    logits: Tensor  # (B, n, V) processed logits of q
    scores: Tensor  # (B, n) the head's
    committed: list[list[int]]  # the tokens of each row that need no target
    waits: list[bool]  # whether the target decides the token after them; else the text has ended

    @property
    def counts(self) -> list[int]:
        return [len(tokens) for tokens in self.committed]

    @cached_property
    def column(self) -> Tensor:
        """``(B,)`` the column of the token that the target decides; arbitrary if the row has none."""
        last = self.tokens.shape[1] - 1
        return to_device([min(count, last) for count in self.counts], self.tokens.device)


@dataclass(eq=False)
class UnverifiedDecoding(Decoding):
    """Decodes with a rule that commits tokens without the target while a head accepts them.

    SPRINTER, algorithm 2. Every row runs until its head rejects a token or its text ends; drafts of rows that wait for
    the slowest are dropped. The target then decides one token of each row. No token of its own follows one that is
    kept, because theorem 1 would not hold with it.
    """

    drafter: RunAheadDrafter

    def __post_init__(self) -> None:
        self.request = self.acceptor.unverified_drafting

    def draft(self) -> Run | Draft:
        """Draft and commit tokens until every row waits for the target or has ended.

        Where draft model or target has no room for a token, the draft is empty.
        """
        texts, progress, drafter = self.texts, self.progress, self.drafter
        committed: list[list[int]] = [[] for _ in texts.rows]
        waits, logits, scores, looks, number = [False] * len(texts.rows), [], [], [], 0
        most = min(self.request.max_draft, drafter.room(texts.ids), self.target.room(texts.width))
        if most < 1:
            return Draft.empty(texts.ids)
        ahead = min(most, max(progress.remaining(texts.rows)))
        drafter.begin(texts.ids)
        while going_on := [i for i, row in enumerate(texts.rows) if not (waits[i] or progress.ended[row])]:
            while len(looks) <= number or (len(looks) == number + 1 < ahead and looks_late(texts.device)):
                q, score = drafter.propose_one()
                logits.append(q)
                scores.append(score)
                looks.append(self._look(score))
            fetched, passing = looks[number].tolist(), {}
            number += 1
            for i in going_on:
                token, passes = fetched[i]
                if passes and len(committed[i]) < most - 1:
                    committed[i].append(token)
                    passing[texts.rows[i]] = [token]
                else:
                    waits[i] = True
            if passing:
                progress.commit([*passing], [*passing.values()])
        if len(looks) > number:  # the last was drafted before the look at the one before it
            drafter.keep(number)
            del logits[number:], scores[number:]
        self.stats.draft_work(drafter.cost, texts.rows)
        self.stats.lap("drafting")
        tokens, q = torch.cat(drafter.drafted, dim=-1), torch.cat(logits, dim=1).float()
        return Run(tokens, q, torch.stack(scores, dim=-1), committed, waits)

    def _look(self, score: Tensor) -> Look:
        """Send each row's newest token to the host, and whether it passes."""
        newest, passes = self.drafter.drafted[-1][:, 0], score > self.request.threshold
        if self.progress.limits is not None:
            # Rows that wait are ignored; the others have committed all of the run's tokens before the newest.
            at = self._positions(torch.full_like(newest, len(self.drafter.drafted) - 1), self.drafter.ids)
            passes &= ~at.positions[:, 0]
            if at.allowance is not None:
                passes &= at.allowance[:, 0] >= 1
        return Look(torch.stack([newest, passes.long()], dim=-1))

    def _positions(self, column: Tensor, candidate: Tensor) -> LosslessPositions | None:
        """Return where ``column`` ``(B,)`` has to be lossless, after tokens that were all kept lossily."""
        drafted = candidate.shape[1] - self.texts.width
        whole = self.progress.lossless_positions(candidate, Chain(drafted, candidate.device), self.texts)
        if whole is None:
            return None
        at = column[:, None]
        allowance = None if whole.allowance is None else whole.allowance.gather(1, at) - at
        return LosslessPositions(whole.positions.gather(1, at), allowance, Chain(1, candidate.device))

    def conclude(self, run: Run | Draft) -> None:
        if run.tokens.shape[1] == 0:
            return super().conclude(run)
        candidate = self.texts.with_draft(run.tokens)
        if any(run.waits):
            verification, output = self.verify_after(run, candidate)
            positions = self._positions(run.column, candidate)
            self.commit_after(run, verification, output, decide(self.acceptor, verification, positions))
        else:
            self._keep_up()
            self._record(run)
            self.follow(candidate, run.tokens.shape[1], run.counts)

    def verify_after(self, run: Run, candidate: Tensor) -> tuple[Verification, TargetOutput]:
        """Run one forward over unseen tokens; return the target's answer about one token of each row."""
        start = min(count for count, waits in zip(run.counts, run.waits, strict=True) if waits)
        draft = Draft(run.tokens[:, start:], run.logits[:, start:])
        asking = [row for row, waits in zip(self.texts.rows, run.waits, strict=True) if waits]
        verification, output = self.verify(draft, candidate, asking)
        if len(draft) > 1:
            verification = one_of_each(verification, (run.column - start).clamp(min=0))
        return verification, output

    def commit_after(self, run: Run, verification: Verification, output: TargetOutput, decision: Decision) -> None:
        rows, at = self.texts.rows, run.column[:, None]
        decided = decision.to_host(Draft(run.tokens.gather(1, at)))
        self.stats.lap("deciding")
        if self.inspected:
            score = {"P(acceptable)": run.scores.gather(1, at)}
            decided = with_scores(decided, self.acceptor, verification, decision, score)
        kept, decisions = run.counts, {}
        for i, row in enumerate(rows):
            if run.waits[i]:  # one token stays: the drafted one, or the target's in its place
                kept[i] += decided[i].n_accepted
                decisions[row] = replace(decided[i], tokens=decided[i].tokens[:1])
        extended = self.texts.with_next(run.tokens.shape[1], kept, decision.next_token)
        counts = self.progress.commit([*decisions], [x.tokens for x in decisions.values()])
        self._record(run)
        self.count([*decisions], [*decisions.values()], counts)
        self.follow(extended, run.tokens.shape[1], kept, verification, output)

    def _record(self, run: Run) -> None:
        """Add a run to the statistics, as far as it is in the output."""
        progress, scores = self.progress, [[]] * len(run.waits)
        if self.inspected:
            q = run.logits.softmax(-1).gather(-1, run.tokens[..., None])[..., 0].tolist()
            both = zip(q, run.scores.tolist(), strict=True)
            scores = [
                [TokenScores(q=a, quantities={"P(acceptable)": b}) for a, b in zip(*x, strict=True)] for x in both
            ]
        for row, tokens, said in zip(self.texts.rows, run.committed, scores, strict=True):
            own = self.stats.rows[row]
            count = max(0, min(len(tokens), progress.generated[row] - len(own.records)))
            own.add_run(tokens[:count], self.request.name, said[:count])
            progress.lossy[row] += count


def one_of_each(v: Verification, columns: Tensor) -> Verification:
    """Return the answer about one drafted position ``(B,)`` of each chain, and about the one after it."""
    rows = torch.arange(len(columns), device=columns.device)[:, None]
    one, two = columns[:, None], torch.stack([columns, columns + 1], dim=-1)
    picked = {"tokens": v.tokens[rows, one], "logits": v.logits[rows, two]}
    for name, at in {"draft_logits": one, "hidden": two, "centroid_logits": one}.items():
        if (values := getattr(v, name)) is not None:
            picked[name] = values[rows, at]
    if v.dropped_logits is not None:
        picked["dropped_logits"] = v.dropped_logits.transpose(1, 2)[rows, one].transpose(1, 2)
    return replace(v, **picked, shape=None, logits_after=None)
