"""Replay: a rule decides along the target's own texts, and a token that it keeps wrongly counts as the text's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..acceptors import Acceptor, decide
from ..core.distributions import Randomness
from ..core.messages import Verification
from ..core.shapes import Chain
from .laws import Laws

REPLICATES = 8
"""How often each text is drawn where a rule that looks at whole drafts decides drawn tokens."""


@dataclass(frozen=True, eq=False)
class Walk:
    """What a rule with drafts of ``gamma`` tokens does on each text; arrays ``(B,)``, expected values when sampling."""

    gamma: int
    rounds: np.ndarray
    kept: np.ndarray  # drafted tokens
    others: np.ndarray  # kept ones that the lossless rule would have refused
    nats: np.ndarray  # what they have less log p than the best ones, in sum
    worst: np.ndarray  # the largest of these


@dataclass(frozen=True, eq=False)
class Acceptance:
    """How a rule decides every position on its own, arrays ``(B, T)``."""

    keep: np.ndarray  # the probability that a drafted token is kept, given the text's own token
    others: np.ndarray  # the probability that it is, and the lossless rule would refuse it
    nats: np.ndarray  # the loss of log p then

    def keeping(self, share: float) -> Acceptance:
        """Return the decisions of a rule that also keeps a share of the tokens that this one refuses."""
        return replace(self, keep=self.keep + share * (1 - self.keep))

    def walk(self, laws: Laws, gamma: int) -> Walk:
        """Walk along the texts in rounds of ``gamma`` tokens; a round may start anywhere, with some probability."""
        lengths, (rows, width) = laws.lengths.numpy(), self.keep.shape
        real = np.arange(width + gamma) < lengths[:, None]
        keep = np.where(real, np.pad(self.keep, ((0, 0), (0, gamma))), 0.0)
        # Every round leaves room for the target's own token.
        drafted = np.minimum(gamma, laws.limit - np.arange(width) - 1)[None, :, None]
        each = np.lib.stride_tricks.sliding_window_view(keep, gamma, axis=1)[:, :width]
        each = np.where(np.arange(gamma) < drafted, each, 0.0)
        # reached[b, s, k]: the first k tokens of a draft from s on are kept.
        reached = np.concatenate([np.ones((rows, width, 1)), each.cumprod(-1)], axis=-1)
        exactly = reached - np.concatenate([reached[..., 1:], np.zeros((rows, width, 1))], axis=-1)
        starts = np.zeros((rows, width + gamma + 1))
        starts[:, 0] = 1.0
        for s in range(width):
            starts[:, s + 1 : s + gamma + 2] += starts[:, s, None] * exactly[:, s]
        starts = np.where(real, starts[:, : width + gamma], 0.0)[:, :width]
        at = np.zeros((rows, width + gamma))  # the probability that a position's drafted token is kept
        for k in range(gamma):
            at[:, k : k + width] += starts * reached[..., k + 1]
        at = at[:, :width]
        share = np.divide(self.others, self.keep, out=np.zeros_like(self.others), where=self.keep > 0)
        worst = np.where(at * share > 0.01, self.nats, 0.0).max(1)
        others = at * share
        return Walk(gamma, starts.sum(1), at.sum(1), others.sum(1), (others * self.nats).sum(1), worst)


def greedy(rule: Acceptor, laws: Laws) -> Acceptance:
    """Return how a rule decides the draft's likeliest token at every position."""
    p = torch.cat([laws.p, laws.p[:, -1:]], dim=1)
    decision = decide(rule, Verification(laws.best, p, draft_logits=laws.q))
    others = decision.keep & ~decision.lossless
    return Acceptance(_array(decision.keep), _array(others), _array(_lost(laws.p, laws.best)))


def rounds(rule: Acceptor, laws: Laws, gamma: int, do_sample: bool = False) -> Walk:
    """Walk round by round, all texts together, for rules that look at a whole draft or at earlier rounds."""
    copies = REPLICATES if do_sample else 1
    spread = laws if copies == 1 else _repeated(laws, copies)
    rows, randomness = len(spread.lengths), Randomness(0)
    start, spent = torch.zeros(rows, dtype=torch.long), torch.zeros(rows)
    count, kept, others, nats, worst = torch.zeros(5, rows, dtype=torch.float64)
    lossy = torch.arange(gamma)
    while (alive := start < spread.lengths).any():
        p, q = spread.at(spread.p, start, gamma + 1), spread.at(spread.q, start, gamma)
        tokens = randomness.categorical(q.softmax(-1)) if do_sample else spread.at(spread.best, start, gamma)
        room = (spread.limit - start - 1).clamp(0, gamma)
        shape = Chain(gamma, tokens.device, None if (room == gamma).all() else room)
        v = Verification(
            tokens, p, draft_logits=q, do_sample=do_sample, randomness=randomness, shape=shape, charged=spent
        )
        decision = decide(rule, v)
        length = decision.n_accepted.minimum(spread.lengths - start).where(alive, 0)
        wrong = (decision.keep & ~decision.lossless) & (lossy < length[:, None])
        lost = _lost(p[:, :-1], tokens).masked_fill(~wrong, 0.0)
        count += alive
        kept += length
        others += wrong.sum(-1)
        nats += lost.sum(-1)
        worst = worst.maximum(lost.amax(-1).double())
        spent = spent if decision.charge is None else spent + decision.charge.where(alive, 0.0)
        start = torch.where(alive, start + length + 1, start)
    sums = [_array(x.view(-1, copies).mean(-1)) for x in (count, kept, others, nats)]
    return Walk(gamma, *sums, _array(worst.view(-1, copies).amax(-1)))


def _lost(p: Tensor, tokens: Tensor) -> Tensor:
    """Return how much less log p tokens have than the best ones."""
    return p.amax(-1) - p.gather(-1, tokens[..., None])[..., 0]


def _repeated(laws: Laws, copies: int) -> Laws:
    fields = (laws.p, laws.q, laws.best, laws.written, laws.lengths)
    return Laws(*(x.repeat_interleave(copies, 0) for x in fields), limit=laws.limit)


def _array(values: Tensor) -> np.ndarray:
    return values.double().numpy()
