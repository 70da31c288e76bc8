"""Which drafted token follows which: what chains and trees share, and chains.

Notation as in :mod:`~hf_lossy_assist.core.messages`: ``B`` rows, ``n`` drafted tokens, ``V`` vocabulary. A tensor of
``n + 1`` positions is about the newest committed token and each drafted one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .distributions import point_mass
from .transfers import to_device


@dataclass(frozen=True, eq=False)
class Prefix:
    """The part of a draft that stays."""

    mask: Tensor  # (B, n) which drafted tokens stay
    length: Tensor  # (B,) how many stay
    end: Tensor  # (B,) the last of them, counted from 1; 0 for the newest committed token
    complete: Tensor  # (B,) whether nothing was drafted after it
    rejected: Tensor  # (B,) the token rejected after it, the last of several; anything up to n for a complete prefix
    columns: Tensor | None = None  # (B, k) the tokens that stay, in order, then arbitrary ones; None for a chain


class Shape(ABC):
    """Which drafted token follows which; where a method is not overridden, each follows the one before it."""

    @abstractmethod
    def __len__(self) -> int:
        """Return n, the number of drafted tokens."""

    @property
    @abstractmethod
    def drafted(self) -> Tensor | None:
        """``(B, n)`` where a row was given a token, or None for everywhere."""

    @property
    @abstractmethod
    def depths(self) -> Tensor:
        """``(n,)`` or ``(B, n)`` the number of drafted tokens up to each, itself included."""

    @property
    @abstractmethod
    def to_the_end(self) -> Tensor:
        """``(B, n)`` or ``(1, n)`` the largest number of drafted tokens from each on, itself included."""

    @abstractmethod
    def prefix(self, keep: Tensor, do_sample: bool, log_p: Callable[[], Tensor | None]) -> Prefix:
        """Return the part of the draft that stays, given which tokens ``(B, n)`` a rule keeps on their own.

        ``log_p`` gives the log-probability of the text up to each token, which breaks ties; None if there are none.
        """

    def positions(self, after: Tensor) -> Tensor:
        """Convert values ``(B, n + 1, …)`` after each token into values at each token's own position, and one more."""
        return after

    def at_tokens(self, after: Tensor) -> Tensor:
        """Return ``(B, n, …)`` values at each drafted token's own position.

        ``after`` ``(B, ≥ n, …)`` are values after the newest committed token and the drafted ones. The last drafted
        token's value may be missing.
        """
        return after[:, : len(self)]

    def next_drafted(self, values: Tensor) -> Tensor:
        """Return ``(B, n, …)`` the values of the token that follows each; NaN where none does."""
        return torch.cat([values[:, 1:], torch.full_like(values[:, :1], torch.nan)], dim=1)

    def point_masses(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Return ``(B, n, V)`` 1 at all tokens ``(B, n)`` that were drafted at each position."""
        return point_mass(tokens, like)

    def point_mass(self, tokens: Tensor, at: Tensor, like: Tensor) -> Tensor:
        """Return ``(B, V)`` 1 at all tokens ``(B, n)`` that were drafted at the position of token ``at`` ``(B,)``."""
        return point_mass(tokens.gather(-1, at[:, None]).squeeze(-1), like)

    def untried(self, p_x: Tensor) -> Tensor:
        """Return ``(B, n)`` p(x), renormalised without earlier drafts of the position."""
        return p_x

    def so_far(self, values: Tensor) -> Tensor:
        """Return the sums ``(B, n)`` of values over the drafted tokens up to each, itself included."""
        return values.cumsum(-1)

    def followed(self, match: Tensor, count: int) -> Tensor:
        """Return ``(B, n)`` whether ``count`` drafted tokens follow each and ``match`` ``(B, n)``."""
        followed, with_all = torch.zeros_like(match), len(self) - count
        if with_all > 0:
            followed[:, :with_all] = match.unfold(1, count + 1, 1)[..., 1:].all(-1)
        return followed

    def parent(self, at: Tensor) -> Tensor:
        """Return ``(B,)`` the token before each of ``at`` ``(B,)``, counted from 1; 0 for the newest committed one."""
        return at

    def by_text(self, processors: Any, ids: Tensor, logits: Tensor, alike: bool = False) -> Tensor:
        """Return processed ``logits`` ``(B, m, V)`` of the first positions; processors see the text that ends at each.

        ``ids`` ``(B, L + n)`` are the committed and the drafted tokens. Processors that treat all rows ``alike`` may
        see several texts of each row at once.
        """
        ids, start = ids.clone(), ids.shape[1] - len(self)  # a processor may keep what it is shown
        return torch.stack([processors(ids[:, : start + i], logits[:, i]) for i in range(logits.shape[1])], dim=1)

    def along(self, ids: Tensor, of_text: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``(B, n)`` the values of a function of texts before and at each drafted token.

        ``ids`` ``(B, L + n)`` are the committed and the drafted tokens; ``of_text`` gives one value per token.
        """
        values, n = of_text(ids), len(self)
        return values[:, -n - 1 : -1], values[:, -n:]


@dataclass(frozen=True, eq=False)
class Chain(Shape):
    """Each token follows the one before it."""

    size: int  # n
    device: torch.device
    # How many tokens each row was given, the rest being filler; a tensor ``(B,)`` stays on its device. None for n.
    lengths: tuple[int, ...] | Tensor | None = None

    def __len__(self) -> int:
        return self.size

    @cached_property
    def _ends(self) -> Tensor:
        """``(B,)`` or ``(1,)`` how many tokens each row was given."""
        if isinstance(self.lengths, Tensor):
            return self.lengths.to(self.device)
        if self.lengths is None:
            return torch.full((1,), self.size, device=self.device)
        return to_device(self.lengths, self.device)

    @cached_property
    def drafted(self) -> Tensor | None:
        return None if self.lengths is None else torch.arange(self.size, device=self.device) < self._ends[:, None]

    @property
    def depths(self) -> Tensor:
        return torch.arange(1, self.size + 1, device=self.device)

    @property
    def to_the_end(self) -> Tensor:
        return self._ends[:, None] - torch.arange(self.size, device=self.device)

    def prefix(self, keep: Tensor, do_sample: bool, log_p: Callable[[], Tensor | None]) -> Prefix:
        mask = keep.cumprod(-1)
        end = mask.sum(-1)
        complete = end == (self.size if self.lengths is None else self._ends)
        return Prefix(mask, end, end, complete, end)
