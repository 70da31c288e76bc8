"""What is known of one token of an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FATES: Mapping[str, str] = {
    "accepted": "kept, as the lossless rule would",
    "accepted_lossy": "kept only by a lossy rule",
    "unseen": "not seen by the target",
    "corrected": "the target's, in place of a drafted token",
    "bonus": "the target's, after a draft that was kept",
    "target": "the target's own",
}
"""What can become of a token, in words; the last where nothing was drafted."""


@dataclass(frozen=True)
class Judgement:
    """What the models said about one token, after the user's processors.

    Attributes
    ----------
    p, q
        Its probability by the target and by the draft; None where that one was not asked, or has no distribution.
    likeliest
        The target's likeliest tokens at its position, with their probabilities.
    quantities
        What the rule compared, by its name: of the drafted token that was replaced, for a correction.
    replaced
        That token, with its own p and q; None in trees, where it may be one of several.
    """

    p: float | None = None
    q: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()
    quantities: Mapping[str, float] = field(default_factory=dict)
    replaced: tuple[int, float, float | None] | None = None


@dataclass(frozen=True)
class TokenRecord:
    """One token of an output.

    Attributes
    ----------
    token
        Its id.
    fate
        One of :data:`FATES`: as in ``LossyStats.trace``, and ``"unseen"`` where the target was not asked.
    round
        The round that it came in, from 0.
    rule
        The rule that a kept token is credited to.
    judgement
        What the models said about it, where that was recorded (``lossy_config={"inspect": True}``).
    """

    token: int
    fate: str
    round: int = 0
    rule: str | None = None
    judgement: Judgement | None = None
