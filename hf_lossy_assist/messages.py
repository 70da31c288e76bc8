"""What the stages hand to each other. Every tensor has a batch dimension first.

Notation: ``B`` rows, ``n`` drafted tokens, ``V`` vocabulary, ``p`` the target, ``q`` the draft, both after
the user's logits processors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .sampling import Randomness, point_mass, residual

if TYPE_CHECKING:
    from .trees import Tree


@dataclass(frozen=True)
class DraftCost:
    """What a proposal cost: forwards of the draft model, all tokens in them, and tokens that a head scored."""

    calls: int = 0
    tokens: int = 0
    scored: int = 0


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
    tree
        Which token follows which, of trees; None for a chain, in which each follows the one before it.
    trusted
        How many tokens at the front of each row are committed without the target, or None for none. The target decides
        one token after them, if the row has any.
    bonus
        Whether a token of the target's own follows a row whose tokens are all kept.
    scores
        ``(B, n)`` what a head on the draft model said about each token, for a rule that trusts tokens by one.
    cost, target_inputs
        What the proposal cost, and inputs of the target's forward that the drafter insists on.
    """

    tokens: Tensor
    logits: Tensor | None = None
    hidden: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    tree: Tree | None = None
    trusted: tuple[int, ...] | None = None
    bonus: bool = True
    scores: Tensor | None = None
    cost: DraftCost = DraftCost()
    target_inputs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls, ids: Tensor) -> Draft:
        """Return a draft of no tokens after ``ids`` ``(B, L)``."""
        return cls(ids[:, :0])

    def __len__(self) -> int:
        return self.tokens.shape[1]

    def length(self, row: int) -> int:
        """Return how many tokens a row was given."""
        return len(self) if self.lengths is None else self.lengths[row]

    def trusted_in(self, row: int) -> int:
        """Return how many tokens of a row are committed without the target."""
        return 0 if self.trusted is None else self.trusted[row]

    def undecided_in(self, row: int) -> int:
        """Return how many tokens of a row the target decides."""
        return self.length(row) - self.trusted_in(row)

    @cached_property
    def undecided_rows(self) -> tuple[int, ...]:
        """The rows that the target is asked about: all but those whose text has ended in trusted tokens."""
        return tuple(row for row in range(self.tokens.shape[0]) if self.trusted is None or self.undecided_in(row))

    @cached_property
    def n_trusted(self) -> Tensor:
        """``(B,)`` how many tokens at the front of each row are committed without the target."""
        return torch.tensor(self.trusted or (0,) * len(self.tokens), device=self.tokens.device)

    @property
    def first_undecided(self) -> Tensor:
        """``(B,)`` the column that the target decides after trusted tokens; any, in rows that have ended in them."""
        return self.n_trusted.clamp(max=len(self) - 1)

    def without_trusted(self) -> Draft:
        """Return the columns that hold a token for the target to decide."""
        if self.trusted is None:
            return self
        start = min(self.trusted[row] for row in self.undecided_rows)
        return replace(
            self,
            tokens=self.tokens[:, start:],
            logits=None if self.logits is None else self.logits[:, start:],
            hidden=None if self.hidden is None else self.hidden[:, start:],
            lengths=None,
            trusted=tuple(max(0, n - start) for n in self.trusted),
        )


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
    charged
        What a rule with a budget over the whole text has charged each text so far; empty for nothing.
    outputs
        What the target's forward returned.
    raw_logits
        ``(B, n + 1, V)`` its logits from before the processors, where the caller asked for them.
    sent
        How many tokens the forward was over, of all rows.
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
    charged: Sequence[float] = ()
    outputs: Any = field(default=None, repr=False)
    raw_logits: Tensor | None = field(default=None, repr=False)
    sent: int = 0

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

    @property
    def p_left(self) -> Tensor:
        """``(B, n)`` p(x), of what is left of p where other drafts of the same position have been tried before."""
        return self.p_x

    @property
    def states_before(self) -> Tensor | None:
        """``(B, n, d)`` the target's states that predicted the drafted tokens, where a rule asked for states."""
        return None if self.hidden is None else self.hidden[:, :-1]

    @property
    def states_after(self) -> Tensor | None:
        """``(B, n, d)`` its states that have read them."""
        return None if self.hidden is None else self.hidden[:, 1:]

    @property
    def draft_states_after(self) -> Tensor:
        """``(B, n, d)`` the draft model's states that have read the drafted tokens; NaN of what it has not read."""
        return torch.cat([self.draft_hidden[:, 1:], torch.full_like(self.draft_hidden[:, :1], torch.nan)], dim=1)

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

    @property
    def spent(self) -> Tensor:
        """``(B, 1)`` what the rule has charged the texts so far."""
        rows = self.charged or (0.0,) * len(self.tokens)
        return torch.tensor(rows, dtype=torch.float32, device=self.tokens.device)[:, None]

    @property
    def left(self) -> Tensor:
        """``(B, n)`` or ``(1, n)`` how many drafted tokens there are from each on, itself included."""
        n = torch.full((1,), len(self), device=self.tokens.device) if self.lengths is None else self.lengths
        return n[:, None] - torch.arange(len(self), device=self.tokens.device)

    def so_far(self, values: Tensor) -> Tensor:
        """Return the sums ``(B, n)`` of ``values`` over the drafted tokens up to each, itself included."""
        return values.cumsum(-1)

    @cached_property
    def lossless(self) -> Tensor:
        """``(B, n)`` what the lossless rule would keep with the same random numbers."""
        return (self.u <= self.ratio) if self.do_sample else (self.tokens == self.best[:, :-1])

    def target_distribution(self, at: Tensor) -> Tensor:
        """Return p at one position per row, ``(B, V)``: probabilities to draw from, or scores to maximise."""
        rows = torch.arange(len(at), device=at.device)
        return self.p[rows, at] if self.do_sample else self.logits[rows, at]

    def residual_distribution(self, at: Tensor) -> Tensor:
        """Return the lossless correction at one drafted position per row, ``(B, V)``."""
        if not self.do_sample:
            return self.target_distribution(at)
        rows = torch.arange(len(at), device=at.device)
        return residual(self.p[rows, at], self.q[rows, at])

    def proposed(self, at: Tensor) -> Tensor:
        """Return ``(B, V)`` 1 at the token that was drafted at one position per row, and 0 at all others."""
        return point_mass(self.tokens.gather(-1, at[:, None]).squeeze(-1), self.logits)

    def followed(self, match: Tensor, count: int) -> Tensor:
        """Return ``(B, n)`` whether the ``count`` drafted tokens after each are there and ``match`` ``(B, n)``."""
        followed = torch.zeros_like(match)
        if len(self) > count:
            followed[:, : len(self) - count] = match.unfold(1, count + 1, 1)[..., 1:].all(-1)
        return followed

    def choose(self, distribution: Tensor) -> Tensor:
        """Pick one token per row of a distribution of shape ``(..., V)``: a draw when sampling, else the maximum."""
        return self.randomness.categorical(distribution) if self.do_sample else distribution.argmax(-1)

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
            charged=self.charged,
            sent=self.sent,
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
    path
        ``(B, k)`` the columns of a tree that stay, ``n_accepted`` of them, in their order; None for a chain.
    charge
        ``(B,)`` what the kept tokens cost their texts, for a rule with a budget over the whole text; else None.
    """

    keep: Tensor
    n_accepted: Tensor
    next_token: Tensor
    lossless: Tensor
    kept_by: Mapping[str, Tensor]
    path: Tensor | None = None
    charge: Tensor | None = None
