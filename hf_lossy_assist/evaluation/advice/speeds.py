"""How fast work is on a machine, a text or a batch at a time, and between what bounds its ratios lie elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ..costs import Costs
from ..quality import Interval, Spread, around
from ..requests import Response
from ..tables import milliseconds
from .replay import Walk

STEADY = 1.25
"""How many times as long as in another repeat a step may take on a machine that is steady."""


DRIFT = 0.06
"""By how much, as a standard deviation of its logarithm, a rule's own text is faster or slower than the target's.

For texts that part at their first token. Set before ``benchmarks.advice_coverage`` ran, by some of its sets with other
prompts: there rules were up to 5 % faster than replayed.
"""


class Work(Protocol):
    """Rounds on each text."""

    def row_seconds(self, costs: Costs, length: float) -> np.ndarray:
        """Return ``(B,)`` the seconds of each text's rounds, in calls of so many tokens."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What a setting did on the first prompts, when it ran; arrays ``(g,)``."""

    mode: str
    gamma: int | str
    tokens: np.ndarray
    rounds: np.ndarray
    drafted: np.ndarray
    looked_up: np.ndarray | float = 0.0  # of the drafted ones, those that cost no forward of a draft

    @classmethod
    def of(cls, mode: str, gamma: int | str, responses: Iterable[Response]) -> Trial:
        """Return what calls of a setting say."""
        rows = [
            (len(tokens), work[0], drafted, one.stats.looked_up / len(one.rows))
            for one in responses
            for tokens, work, drafted in zip(one.rows, one.work, one.drafted, strict=True)
        ]
        return cls(mode, gamma, *np.array(rows, dtype=float).T)

    def row_seconds(self, costs: Costs, length: float) -> np.ndarray:
        each = zip(self.rounds, self.drafted, strict=True)
        found = [rounds * costs.round(drafted / rounds, length) for rounds, drafted in each]
        return np.array(found) - self.looked_up * costs.token(length)


@dataclass(frozen=True, eq=False)
class Speeds:
    """The target's texts, what steps cost here, and the ratios of speeds that follow.

    Attributes
    ----------
    tokens
        ``(B,)`` tokens of the texts.
    length
        Tokens of a prompt and half its text, in the mean.
    costs
        Seconds of the steps of decoding, for ``rows`` texts together.
    repeats
        The costs that each repeat of the timing has seen.
    rows
        How many texts are decoded together; ``B`` is a multiple. A batch goes on until its slowest row has ended.
    sampled
        Whether tokens are drawn, so that the texts of each run differ.
    """

    tokens: np.ndarray
    length: float
    costs: Costs
    repeats: Sequence[Costs] = ()
    rows: int = 1
    sampled: bool = False

    def with_draft_cost(self, share: float) -> Speeds:
        """Return the speeds on hardware where a drafted token takes ``share`` of a target's token."""
        repeats = tuple(one.with_draft_cost(share) for one in self.repeats)
        return replace(self, costs=self.costs.with_draft_cost(share), repeats=repeats)

    @cached_property
    def alone(self) -> Walk:
        """The target alone, each of whose rounds is a token."""
        nothing = np.zeros(len(self.tokens))
        return Walk(0, self.tokens[:, None], *[nothing] * 4)

    def seconds(self, work: Work, costs: Costs | None = None) -> np.ndarray:
        """Return the seconds of each batch, without its prompts."""
        return work.row_seconds(costs or self.costs, self.length).reshape(-1, self.rows).max(1)

    def per_second(self, work: Work) -> float:
        """Return the tokens of all rows per second."""
        return float(self.tokens.sum() / self.seconds(work).sum())

    def times(self, own: Walk, base: Walk, ran: tuple[Trial, Walk] | None = None) -> Interval:
        """Return how many times as fast as ``base`` is ``own``, and where that is in 95 % of runs on other prompts.

        Those are as many, so prompts count twice. A text that has left the target's is one more draw, and by a
        :data:`DRIFT` faster or slower than a replay shows. A setting that ``ran``, with the walk that predicts it, has
        shown some of this. A round emits at most a token more than it drafts, which bounds the ratio.
        """
        if own is base:
            return 1.0, 1.0, 1.0
        known, others = self.seconds(own), self.seconds(base)
        logs = [np.log(self.seconds(base, one).sum() / self.seconds(own, one).sum()) for one in self.repeats]
        paired = Spread.of_sums(np.stack([others, known], 1), _log)
        shift, drift = self._drift(own, ran)
        redrawn = [self._redrawn(each) for each in (own, base)]
        estimate = np.log(others.sum() / known.sum()) + shift
        found = around(estimate, _scaled(paired, 2), *redrawn, drift, Spread.of_mean(logs or [0.0]))
        most = own.most * others.sum() / self.seconds(self.alone).sum()
        return tuple(min(most, math.exp(x)) for x in found)

    def _drift(self, walk: Walk, ran: tuple[Trial, Walk] | None) -> tuple[float, Spread]:
        """Return by how much the logarithm of a rule's speed is off, and how far that may be wrong.

        What a run has shown counts by its precision beside that of a drift of 0.
        """
        before = DRIFT**2 * self._share(walk.diverged)
        if ran is None or not before:
            return 0.0, Spread(before)
        run, predicted = ran
        seen = np.stack([self._of_batches(run.tokens), self.seconds(run)], 1)
        expected = np.stack([self.seconds(predicted), self._of_batches(self.tokens)], 1)[: len(seen)]
        both = np.concatenate([seen, expected], 1)
        # As few prompts as ran may agree by chance.
        least = self._redrawn(predicted).variance * len(self.tokens) / len(run.tokens)
        variance = max(Spread.of_sums(both, _log).variance, least)
        weight = before / (before + variance)
        return weight * float(_log(both.sum(0)[None])[0]), Spread(weight * variance)

    def _redrawn(self, walk: Walk) -> Spread:
        """Return what the logarithm of a speed varies by, since texts differ from those of the replay."""
        rates = np.stack([self._of_batches(self.tokens), self.seconds(walk)], 1)
        return _scaled(Spread.of_sums(rates, _log), 1.0 if self.sampled else self._share(walk.diverged))

    def _share(self, shares: np.ndarray) -> float:
        """Return the share of all tokens of which each text has its own share."""
        return float((shares * self.tokens).sum() / self.tokens.sum())

    def _of_batches(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(-1, self.rows).sum(1)

    @property
    def spread(self) -> tuple[float, str]:
        """How many times as long as in another repeat the least steady step took, and what that is, in words."""
        steps = {"a drafted token": [one.token(self.length) for one in self.repeats]}
        for n in self.costs.target:
            steps[f"a round over {n} token{'s' * (n > 1)}"] = [one.read(n, self.length) for one in self.repeats]
        found = [(max(each) / min(each), name, each) for name, each in steps.items() if min(each, default=0) > 0]
        times, name, each = max(found, default=(1.0, "", [0.0]))
        return times, f"{name} took {milliseconds(min(each))} to {milliseconds(max(each))} ms"

    @property
    def steady(self) -> bool:
        """Whether repeats agree."""
        return self.spread[0] <= STEADY

    @property
    def draft_cost(self) -> float:
        """A drafted token's share of a target's token."""
        return self.costs.token(self.length) / self.costs.read(1, self.length)

    @property
    def entry(self) -> dict[str, Any]:
        """What ``advice.json`` has."""
        return {
            "draft": self.costs.token(self.length), "draft_cost": self.draft_cost, "length": self.length,
            "target": {str(n): self.costs.read(n, self.length) for n in sorted(self.costs.target)}, "rows": self.rows,
            "repeats": len(self.repeats), "spread": self.spread[0],
        }  # fmt: skip


def _log(sums: np.ndarray) -> np.ndarray:
    """Return the logarithm of a product of ratios, each of two columns."""
    return np.log(sums[:, ::2] / sums[:, 1::2]).sum(1)


def _scaled(spread: Spread, factor: float) -> Spread:
    return replace(spread, variance=factor * spread.variance)
