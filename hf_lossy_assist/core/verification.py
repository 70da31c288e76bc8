"""The target's answer to a draft: everything that a rule may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from .distributions import Randomness, residual
from .shapes import Chain, Shape
from .transfers import to_device
from .trees import along_path


@dataclass(frozen=True, eq=False)
class Verification:
    """Verification → acceptor: the target's answer to a draft.

    Position i is that of drafted token i, and p there is the target's distribution given the tokens before it. Rules
    judge every token on its own, given that all tokens before it are kept. In a tree these are the tokens on its path,
    and the last of the n + 1 positions has no meaning.

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
        ``(B, n + 1, d)`` inputs of the target's LM head after the newest committed token and each drafted one, for
        rules that need them.
    dropped_logits
        ``(B, K, n, V)`` processed logits of the target's K dropped heads, for rules that need them.
    centroid_logits
        ``(B, n, V)`` processed mean of the raw logits of the K dropped heads, for rules that compare it with q.
    draft_hidden
        ``(B, n, d)`` the draft model's states that predicted the drafted tokens, for rules that need them.
    shape
        Which token follows which; by default a chain.
    logits_after
        ``(B, n + 1, V)`` the logits after the newest committed token and each drafted one; None where these are
        ``logits``, as for a chain.
    charged
        What a rule with a budget has charged each text so far, as numbers or as a tensor ``(B,)``; empty for nothing.
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
    shape: Shape = None
    logits_after: Tensor | None = None
    charged: Sequence[float] | Tensor = ()

    def __post_init__(self) -> None:
        if self.shape is None:
            object.__setattr__(self, "shape", Chain(self.tokens.shape[1], self.tokens.device))

    def __len__(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def p(self) -> Tensor:
        """``(B, n + 1, V)`` probabilities of the target."""
        return self.logits.softmax(-1)

    @cached_property
    def q(self) -> Tensor:
        """``(B, n, V)`` probabilities of the draft; a point mass for a drafter without a distribution."""
        if self.draft_logits is None:
            return self.shape.point_masses(self.tokens, self.logits)
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
    def p_untried(self) -> Tensor:
        """``(B, n)`` p(x); when sampling, renormalised without earlier drafts of the position."""
        return self.shape.untried(self.p_x) if self.do_sample else self.p_x

    @cached_property
    def max_p(self) -> Tensor:
        """``(B, n)`` probability of the target's likeliest token."""
        return self.p[:, :-1].amax(-1)

    @cached_property
    def ratio(self) -> Tensor:
        """``(B, n)`` p(x) / q(x)."""
        return self.p_untried / self.q_x.clamp(min=1e-10)

    @property
    def states_before(self) -> Tensor | None:
        """``(B, n, d)`` the target's states that predicted the drafted tokens, or None."""
        return None if self.hidden is None else self.shape.at_tokens(self.hidden)

    @property
    def states_after(self) -> Tensor | None:
        """``(B, n, d)`` the target's states that have read the drafted tokens, or None."""
        return None if self.hidden is None else self.hidden[:, 1:]

    @property
    def draft_states_after(self) -> Tensor:
        """``(B, n, d)`` the draft model's states that have read the drafted tokens; NaN for unread ones."""
        return self.shape.next_drafted(self.draft_hidden)

    @cached_property
    def u(self) -> Tensor:
        """``(B, n)`` draws from U[0, 1): one per position, shared by all rules of a round."""
        return self.randomness.uniform(tuple(self.tokens.shape), self.logits.device)

    @cached_property
    def best_after(self) -> Tensor:
        """``(B, n + 1)`` the target's likeliest tokens after the newest committed token and each drafted one."""
        return self._after_tokens.argmax(-1)

    @cached_property
    def best(self) -> Tensor:
        """``(B, n + 1)`` the target's likeliest tokens."""
        return self.shape.positions(self.best_after)

    @cached_property
    def allowed(self) -> Tensor:
        """``(B, n)`` whether there is a drafted token and the user's processors allow it."""
        allowed = self.logit_x > -torch.inf
        return allowed if self.drafted is None else allowed & self.drafted

    @property
    def drafted(self) -> Tensor | None:
        """``(B, n)`` where a row was given a token, or None for everywhere."""
        return self.shape.drafted

    @cached_property
    def log_p(self) -> Tensor:
        """``(B, n)`` the target's log-probability of the drafted text up to each token."""
        return self.shape.so_far(self.logit_x - self.shape.at_tokens(self._after_tokens.logsumexp(-1)))

    @cached_property
    def spent(self) -> Tensor:
        """``(B, 1)`` what the rule has charged the texts so far."""
        if not len(self.charged):
            return torch.zeros(len(self.tokens), 1, dtype=torch.float32, device=self.tokens.device)
        if isinstance(self.charged, Tensor):
            return self.charged.to(self.tokens.device, torch.float32)[:, None]
        return to_device(self.charged, self.tokens.device, torch.float32)[:, None]

    @property
    def to_the_end(self) -> Tensor:
        """``(B, n)`` or ``(1, n)`` the largest number of drafted tokens from each on, itself included."""
        return self.shape.to_the_end

    def so_far(self, values: Tensor) -> Tensor:
        """Return the sums ``(B, n)`` of ``values`` over the drafted tokens up to each, itself included."""
        return self.shape.so_far(values)

    def followed(self, match: Tensor, count: int) -> Tensor:
        """Return ``(B, n)`` whether ``count`` drafted tokens follow each and ``match`` ``(B, n)``."""
        return self.shape.followed(match, count)

    @cached_property
    def lossless(self) -> Tensor:
        """``(B, n)`` what the lossless rule would keep with the same random numbers."""
        return (self.u <= self.ratio) if self.do_sample else (self.tokens == self.best[:, :-1])

    def after(self, token: Tensor) -> Tensor:
        """Return ``(B, V)`` p after one token per row, counted from 1; 0 is the newest committed token.

        The values are probabilities to draw from, or scores to maximise.
        """
        rows = torch.arange(len(token), device=token.device)
        if self.logits_after is None and self.do_sample:
            return self.p[rows, token]
        logits = self._after_tokens[rows, token]
        return logits.softmax(-1) if self.do_sample else logits

    def target_distribution(self, at: Tensor) -> Tensor:
        """Return ``(B, V)`` p at one position per row: probabilities to draw from, or scores to maximise."""
        return self.after(self.shape.parent(at))

    def residual_distribution(self, at: Tensor) -> Tensor:
        """Return ``(B, V)`` the lossless correction at one drafted position per row."""
        p = self.target_distribution(at)
        if not self.do_sample:
            return p
        rows = torch.arange(len(at), device=at.device)
        return residual(p, self.proposed(at) if self.draft_logits is None else self.q[rows, at])

    def proposed(self, at: Tensor) -> Tensor:
        """Return ``(B, V)`` 1 at the tokens drafted at one position per row, and 0 elsewhere."""
        return self.shape.point_mass(self.tokens, at, self.logits)

    def choose(self, distribution: Tensor) -> Tensor:
        """Pick one token per row of a distribution ``(..., V)``: a draw when sampling, else the maximum."""
        return self.randomness.categorical(distribution) if self.do_sample else distribution.argmax(-1)

    def along(self, path: Tensor | None) -> Verification:
        """Return the answer about one path ``(B, k)`` of each tree, as a chain; None returns a chain itself."""
        if path is None:
            return self
        return Verification(self.tokens.gather(-1, path), along_path(self._after_tokens, path, len(self)))

    @property
    def _after_tokens(self) -> Tensor:
        return self.logits if self.logits_after is None else self.logits_after

    def _at_tokens(self, values: Tensor) -> Tensor:
        return values.gather(-1, self.tokens[..., None]).squeeze(-1)
