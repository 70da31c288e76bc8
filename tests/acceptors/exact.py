"""Exact laws: of a position, by the random numbers up to which a token is kept; of a round, by all that can happen."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from hf_lossy_assist.acceptors import Acceptor, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.limits import LosslessPositions
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.shapes import Chain

NEAR_FLOAT32 = 2e-5
"""Of float32 sums over a few tokens."""
NEAR = 1e-3
"""How near to a threshold random numbers are chosen, as a share of what is on their side of it."""


class Given(Randomness):
    """Gives the random numbers that it was given, and notes the weights that a token is drawn from."""

    def __init__(self, u: torch.Tensor) -> None:
        super().__init__()
        self.u = u

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        assert tuple(self.u.shape) == shape
        return self.u

    def categorical(self, weights: torch.Tensor) -> torch.Tensor:
        self.law = weights.double() / weights.double().sum(-1, keepdim=True)
        return weights.argmax(-1)


@dataclass(frozen=True)
class Tables:
    """Target and draft of a small vocabulary: ``(V, …, V)`` laws after every text of 0, 1, … tokens."""

    p: list[np.ndarray]
    q: list[np.ndarray]

    @classmethod
    def random(cls, vocabulary: int, gamma: int, rng: np.random.Generator, zeros: float = 0.0) -> Tables:
        """Draw laws, in which a share of the tokens is impossible."""

        def law(length: int) -> np.ndarray:
            shape = (vocabulary,) * (length + 1)
            weights = rng.gamma(0.7, size=shape) + 1e-3
            weights = np.where(rng.random(shape) < zeros, 0, weights)
            weights[..., 0] += np.where(weights.sum(-1) == 0, 1, 0)
            return weights / weights.sum(-1, keepdims=True)

        return cls([law(i) for i in range(gamma + 1)], [law(i) for i in range(gamma)])

    @property
    def gamma(self) -> int:
        return len(self.q)

    @property
    def vocabulary(self) -> int:
        return self.p[0].shape[0]

    def drafts(self) -> np.ndarray:
        """Return ``(V^γ, γ)`` every draft."""
        return np.array(list(itertools.product(range(self.vocabulary), repeat=self.gamma)))

    def along(self, laws: list[np.ndarray], draft: np.ndarray) -> np.ndarray:
        """Return the laws before each token of a draft, and after its last one if there is one."""
        return np.stack([law[tuple(draft[:i])] for i, law in enumerate(laws)])

    def joint(self) -> np.ndarray:
        """Return ``(V, …, V)`` the target's law of γ + 1 tokens."""
        joint = self.p[0]
        for law in self.p[1:]:
            joint = joint[..., None] * law
        return joint


def token_thresholds(p: np.ndarray, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return how probable it is that each token is kept on its own."""
    at = np.arange(len(x))
    return np.minimum(1, np.divide(p[at, x], q[at, x], out=np.ones(len(x)), where=q[at, x] > 0))


def block_thresholds(p: np.ndarray, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return h₁ … h_γ of block verification (Sun et al. 2024, algorithm 2), straight from the paper."""
    stay, h = 1.0, []
    for i, token in enumerate(x, 1):
        stay = min(1.0, stay * p[i - 1, token] / q[i - 1, token]) if q[i - 1, token] else 1.0
        if i == len(x):
            h.append(stay)
            continue
        rest = np.maximum(stay * p[i] - q[i], 0).sum()
        h.append(rest / (rest + 1 - stay) if rest + 1 - stay > 0 else 1.0)
    return np.array(h)


STEPS = 512
"""In which random numbers are looked through, three times finer each time."""


@dataclass(frozen=True)
class Emitted:
    """What becomes of one position: ``keeps`` ``(V,)`` and ``corrections`` ``(V, V)`` of each drafted token."""

    keeps: np.ndarray
    corrections: np.ndarray
    q: np.ndarray

    @property
    def alpha(self) -> float:
        return float((self.q * self.keeps).sum())

    @property
    def law(self) -> np.ndarray:
        """Return ``(V,)`` the law of the token that comes out."""
        return self.q * self.keeps + (self.q * (1 - self.keeps)) @ self.corrections


def emitted(
    rule: Acceptor, p: np.ndarray, q: np.ndarray, with_q: bool = True, do_sample: bool = True, **read: torch.Tensor
) -> Emitted:
    """Return what ``decide`` does with each token, to the rounding of float32.

    Without q, the drafter was certain of its token. ``read`` is what rules read besides, at one position.
    """
    size = len(p)

    def decided(u: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        rows, given = u.numel(), Given(u.float().flatten()[:, None])
        logits, draft = (torch.tensor(x).log().float().expand(rows, n, -1) for x, n in ((p, 2), (q, 1)))
        x = torch.arange(size).repeat_interleave(rows // size)[:, None]
        more = {name: value.expand(rows, *value.shape) for name, value in read.items()}
        decision = decide(rule, Verification(x, logits, draft if with_q else None, do_sample, given, **more))
        law = given.law if do_sample else torch.nn.functional.one_hot(decision.next_token, size)
        return (decision.n_accepted == 1).reshape(u.shape).numpy(), law.double().numpy()

    low, width = np.zeros(size), 1.0
    for _ in range(3):
        kept, _ = decided(torch.tensor(low[:, None] + width * np.arange(STEPS) / STEPS))
        low, width = low + width * np.maximum(kept.sum(-1) - 1, 0) / STEPS, width / STEPS
    _, corrections = decided(torch.ones(size))
    return Emitted(np.where(low < 1e-7, 0, low), corrections, q)


THRESHOLDS = {"token": token_thresholds, "block": block_thresholds}


@dataclass(frozen=True)
class Outcome:
    """A rule's output over all drafts: the distribution of γ + 1 tokens, and the mean number of drafted tokens kept."""

    law: np.ndarray
    kept: float


def outcome(rule: Acceptor, kind: str, tables: Tables, lengths=None, strict: bool = False) -> Outcome:
    """Decide every draft at random numbers on either side of every threshold, as the target goes on from there.

    ``lengths`` gives each draft's number of tokens from the draft; with ``strict``, all positions have to be lossless.
    """
    gamma, size = tables.gamma, tables.vocabulary
    cells = np.array(list(itertools.product([True, False], repeat=gamma)))
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, float, int]] = []
    for draft in tables.drafts():
        n = gamma if lengths is None else lengths(draft)
        p, q = tables.along(tables.p, draft), tables.along(tables.q, draft)
        weight = np.prod([q[i, x] for i, x in enumerate(draft)])
        if weight == 0:
            continue
        h = np.ones(gamma)
        h[:n] = THRESHOLDS[kind](p, q, draft[:n])
        for below in cells:
            chance = np.prod(np.where(below, h, 1 - h))
            if chance > 0:
                u = np.where(below, h * (1 - NEAR), h + (1 - h) * NEAR)
                rows.append((draft, u, np.stack([p, np.pad(q, ((0, 1), (0, 0)))]), weight * chance, n))
    tokens = torch.tensor(np.stack([row[0] for row in rows]))
    laws = torch.tensor(np.stack([row[2] for row in rows]))
    randomness = Given(torch.tensor(np.stack([row[1] for row in rows])).float())
    ends = tuple(row[4] for row in rows)
    shape = Chain(gamma, tokens.device, None if lengths is None else ends)
    v = Verification(
        tokens, laws[:, 0].log().float(), laws[:, 1, :-1].log().float(), True, randomness, shape=shape
    )  # fmt: skip
    positions = LosslessPositions(torch.ones_like(tokens, dtype=torch.bool), None, shape) if strict else None
    decision = decide(rule, v, positions)
    assert decision.kept_by.keys() == {"lossless"}
    assert decision.complete.tolist() == [k == n for k, n in zip(decision.n_accepted.tolist(), ends, strict=True)]
    law, kept = np.zeros((size,) * (gamma + 1)), 0.0
    for (draft, _, _, weight, _), n, then in zip(
        rows, decision.n_accepted.tolist(), randomness.law.numpy(), strict=True
    ):
        kept += weight * n
        text = tuple(draft[:n])
        rest = then
        for following in tables.p[n + 1 :]:
            rest = rest[..., None] * following[text]
        law[text] += weight * rest
    return Outcome(law, kept)
