"""Records of one token of an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TokenScores:
    """The models' scores of one token, after the user's processors."""

    p: float | None = None  # the token's probability by the target; None without such a distribution
    q: float | None = None  # its probability by the draft, likewise
    likeliest: tuple[tuple[int, float], ...] = ()  # the target's likeliest tokens at the position, with their p
    # what the rule compared, by name; for a correction, what it compared about the replaced token
    quantities: Mapping[str, float] = field(default_factory=dict)
    # the replaced token with its p and q; None in trees, where it may be one of several
    replaced: tuple[int, float, float | None] | None = None


@dataclass(frozen=True)
class TokenRecord:
    """One token of an output."""

    token: int  # its id
    fate: str  # as in `LossyStats.trace`, or "unverified"
    round: int = 0  # the round that produced it, from 0
    rule: str | None = None  # the rule that a kept token is credited to
    scores: TokenScores | None = None  # recorded under `lossy_config={"inspect": True}`
