"""What the stages hand to each other. Every tensor has a batch dimension first.

Notation: ``B`` rows, ``n`` drafted tokens, ``V`` vocabulary, ``p`` the target, ``q`` the draft, both after
the user's logits processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from .sampling import Randomness, point_mass, residual


@dataclass(frozen=True, eq=False)
class Draft:
    """Drafting → verification: the proposed tokens.

    Attributes
    ----------
    tokens
        ``(B, n)``; n may be 0.
    logits
        ``(B, n, V)`` processed logits of q, or None where the drafter has no distribution.
    hidden
        ``(B, n, d)`` the draft model's states that predicted the tokens, when a rule asked for them.
    lengths
        How many of the tokens each row was given, or None where all rows have n; the others only fill up.
    """

    tokens: Tensor
    logits: Tensor | None = None
    hidden: Tensor | None = None
    lengths: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return self.tokens.shape[1]

    def length(self, row: int) -> int:
        """Return how many tokens a row was given."""
        return len(self) if self.lengths is None else self.lengths[row]


@dataclass(frozen=True, eq=False)
class Strictness:
    """Where a round has to be lossless, whatever the rule.

    Attributes
    ----------
    positions
        ``(B, n)`` drafted positions that the lossless rule decides.
    allowance
        ``(B, n)`` how many tokens up to each position the round may keep lossily, or None for any number.
    """

    positions: Tensor
    allowance: Tensor | None = None

    @property
    def forbids_lossy(self) -> Tensor:
        """``(B, n)`` where a token can't be kept lossily, even if none before it in the round is."""
        return self.positions if self.allowance is None else self.positions | (self.allowance < 1)

    def over(self, keep: Tensor, lossless: Tensor) -> Tensor:
        """Return ``(B, n)`` the positions that the lossless rule decides, given what the rule would keep."""
        if self.allowance is None:
            return self.positions
        lossy = keep & ~lossless & ~self.positions
        return self.positions | (lossy & (lossy.cumsum(-1) > self.allowance))


@dataclass(frozen=True, eq=False)
class Verification:
    """Verification → acceptor: what the target says about a draft.

    Attributes
    ----------
    tokens
        ``(B, n)`` drafted tokens x.
    logits
        ``(B, n + 1, V)`` processed float32 logits of p; the last position is the bonus token's.
    draft_logits
        ``(B, n, V)`` processed logits of q, or None.
    do_sample
        Whether tokens are drawn, or chosen greedily.
    randomness
        The run's source of random numbers.
    hidden
        ``(B, n + 1, d)`` inputs of the target's LM head, when a rule asked for them.
    dropped_logits
        ``(B, K, n, V)`` processed logits of the target's K dropped heads, when a rule asked for them.
    centroid_logits
        ``(B, n, V)`` processed mean of the raw logits of the K dropped heads.
    draft_hidden
        ``(B, n, d)`` the draft model's states that predicted the drafted tokens, when a rule asked for them.
    lengths
        ``(B,)`` how many of the tokens each row was given, or None where all rows have n.
    """

    tokens: Tensor
    logits: Tensor
    draft_logits: Tensor | None = None
    do_sample: bool = False
    randomness: Randomness = field(default_factory=Randomness)
    hidden: Tensor | None = None
    dropped_logits: Tensor | None = None
    centroid_logits: Tensor | None = None
    draft_hidden: Tensor | None = None
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def p(self) -> Tensor:
        """``(B, n + 1, V)`` probabilities of the target."""
        return self.logits.softmax(-1)

    @cached_property
    def q(self) -> Tensor:
        """``(B, n, V)`` probabilities of the draft; a drafter without any was certain of its tokens."""
        if self.draft_logits is None:
            return point_mass(self.tokens, self.logits)
        return self.draft_logits.softmax(-1)

    @cached_property
    def logit_x(self) -> Tensor:
        """``(B, n)`` processed target logits of the drafted tokens."""
        return self._at_tokens(self.logits[:, :-1])

    @cached_property
    def p_x(self) -> Tensor:
        """``(B, n)`` target probabilities of the drafted tokens."""
        return self._at_tokens(self.p[:, :-1])

    @cached_property
    def q_x(self) -> Tensor:
        """``(B, n)`` draft probabilities of the drafted tokens."""
        return torch.ones_like(self.p_x) if self.draft_logits is None else self._at_tokens(self.q)

    @cached_property
    def max_p(self) -> Tensor:
        """``(B, n)`` probability of the target's likeliest token at the drafted positions."""
        return self.p[:, :-1].amax(-1)

    @cached_property
    def ratio(self) -> Tensor:
        """``(B, n)`` p(x) / q(x)."""
        return self.p_x / self.q_x.clamp(min=1e-10)

    @cached_property
    def u(self) -> Tensor:
        """``(B, n)`` draws from U[0, 1): one per position, shared by all rules of a round."""
        return self.randomness.uniform(tuple(self.tokens.shape), self.logits.device)

    @cached_property
    def best(self) -> Tensor:
        """``(B, n + 1)`` the target's likeliest tokens."""
        return self.logits.argmax(-1)

    @cached_property
    def allowed(self) -> Tensor:
        """``(B, n)`` False where the user's processors forbid the drafted token, and where there is none."""
        allowed = self.logit_x > -torch.inf
        return allowed if self.drafted is None else allowed & self.drafted

    @cached_property
    def drafted(self) -> Tensor | None:
        """``(B, n)`` where a row was given a token, or None where all were."""
        if self.lengths is None:
            return None
        return torch.arange(len(self), device=self.tokens.device) < self.lengths[:, None]

    @cached_property
    def lossless(self) -> Tensor:
        """``(B, n)`` what the lossless rule would keep with the same random numbers."""
        return (self.u <= self.ratio) if self.do_sample else (self.tokens == self.best[:, :-1])

    def target_law(self, at: Tensor) -> Tensor:
        """Return p at one position per row, ``(B, V)``: probabilities to draw from, or scores to maximise."""
        rows = torch.arange(len(at), device=at.device)
        return self.p[rows, at] if self.do_sample else self.logits[rows, at]

    def residual_law(self, at: Tensor) -> Tensor:
        """Return the lossless correction at one drafted position per row, ``(B, V)``."""
        if not self.do_sample:
            return self.target_law(at)
        rows = torch.arange(len(at), device=at.device)
        return residual(self.p[rows, at], self.q[rows, at])

    def choose(self, law: Tensor) -> Tensor:
        """Pick one token per row of a law of shape ``(..., V)``: a draw when sampling, else the maximum."""
        return self.randomness.categorical(law) if self.do_sample else law.argmax(-1)

    def at(self, positions: Tensor) -> Verification:
        """Return what the target says about one drafted position ``(B,)`` of each row, and about the one after it."""
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        one, two = positions[:, None], torch.stack([positions, positions + 1], dim=-1)

        def pick(values: Tensor | None, columns: Tensor) -> Tensor | None:
            return None if values is None else values[rows, columns]

        dropped = self.dropped_logits
        return Verification(
            tokens=pick(self.tokens, one),
            logits=pick(self.logits, two),
            draft_logits=pick(self.draft_logits, one),
            do_sample=self.do_sample,
            randomness=self.randomness,
            hidden=pick(self.hidden, two),
            dropped_logits=None if dropped is None else pick(dropped.transpose(1, 2), one).transpose(1, 2),
            centroid_logits=pick(self.centroid_logits, one),
            draft_hidden=pick(self.draft_hidden, one),
        )

    def _at_tokens(self, values: Tensor) -> Tensor:
        return values.gather(-1, self.tokens[..., None]).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Decision:
    """Acceptor → commit: which drafted tokens stay, and the token that follows them.

    Attributes
    ----------
    keep
        ``(B, n)`` whether the rule keeps each drafted token on its own.
    n_accepted
        ``(B,)`` length of the kept prefix.
    next_token
        ``(B,)`` the correction at position ``n_accepted``, or the bonus token when all were kept.
    lossless
        ``(B, n)`` which tokens the lossless rule would have kept.
    kept_by
        For every rule, ``(B, n)`` the tokens credited to it.
    """

    keep: Tensor
    n_accepted: Tensor
    next_token: Tensor
    lossless: Tensor
    kept_by: Mapping[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """A round's decision about one row, on the host.

    Attributes
    ----------
    n_accepted
        Length of the kept prefix.
    tokens
        The kept tokens and the one that follows them.
    lossless, kept_by
        As in :class:`Decision`.
    """

    n_accepted: int
    tokens: list[int]
    lossless: list[bool]
    kept_by: dict[str, list[bool]]

    @classmethod
    def fetch(cls, draft: Draft, decision: Decision) -> list[Outcome]:
        """Bring over all that the host needs, row by row, in one transfer: the round's only synchronisation."""
        parts = [draft.tokens, decision.lossless, *decision.kept_by.values()]
        ends = [decision.n_accepted[:, None], decision.next_token[:, None]]
        packed = torch.cat([*ends, *(part.long() for part in parts)], dim=-1).tolist()
        return [cls._unpack(row, len(draft), tuple(decision.kept_by)) for row in packed]

    @classmethod
    def _unpack(cls, packed: list[int], drafted: int, rules: tuple[str, ...]) -> Outcome:
        n_accepted, next_token, *rest = packed
        tokens, lossless, *masks = (rest[i * drafted : (i + 1) * drafted] for i in range(len(rules) + 2))
        return cls(
            n_accepted=n_accepted,
            tokens=[*tokens[:n_accepted], next_token],
            lossless=list(map(bool, lossless)),
            kept_by={rule: list(map(bool, mask)) for rule, mask in zip(rules, masks, strict=True)},
        )
