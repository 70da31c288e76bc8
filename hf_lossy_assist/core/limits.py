"""Limits on where a run may be lossy: after its first tokens, in a part of the text, or up to a share of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..errors import LossyValueError
from .shapes import Shape

MARKERS = {"thinking": ("<think>", "</think>")}
"""Named scopes and the texts that open and close them."""


@dataclass(frozen=True, eq=False)
class LosslessPositions:
    """The drafted positions of a round that every rule has to decide losslessly."""

    positions: Tensor  # (B, n) drafted positions that the lossless rule decides
    allowance: Tensor | None  # (B, n) how many tokens up to each position the round may keep lossily; None for no limit
    shape: Shape

    def over(self, keep: Tensor, lossless: Tensor) -> Tensor:
        """Return ``(B, n)`` the positions that the lossless rule decides, given what the rule would keep."""
        if self.allowance is None:
            return self.positions
        lossy = keep & ~lossless & ~self.positions
        return self.positions | (lossy & (self.shape.so_far(lossy) > self.allowance))


@dataclass(frozen=True)
class Scope:
    """The part of a text between two markers, as token ids."""

    start: tuple[int, ...]
    end: tuple[int, ...]

    def inside(self, ids: Tensor) -> Tensor:
        """Return ``(B, L)`` whether the text is inside the part after each token; the closing marker is outside."""
        opened, closed = (_last_match(ids, marker) for marker in (self.start, self.end))
        return opened > closed


def _last_match(ids: Tensor, marker: tuple[int, ...]) -> Tensor:
    """Return ``(B, L)`` the end of the marker's last occurrence up to each position, or -1."""
    length = ids.shape[1]
    ends = torch.full_like(ids, -1)
    if length >= len(marker):
        found = (ids.unfold(1, len(marker), 1) == torch.tensor(marker, device=ids.device)).all(-1)
        at = torch.arange(len(marker) - 1, length, device=ids.device).expand_as(found)
        ends[:, len(marker) - 1 :] = torch.where(found, at, -1)
    return ends.cummax(-1).values


@dataclass(frozen=True)
class Limits:
    """Limits on where and how often a run is lossy; everywhere else the lossless rule decides.

    The markers of a scope may be in the prompt too. The closing marker itself is lossless.
    """

    strict_first_n: int = 0  # the first n generated tokens are lossless
    budget: float | None = None  # the largest share of the tokens generated so far to be kept lossily
    # lossy only between markers: "thinking", or a dict with `start` and `end` (text, token id or ids)
    scope: str | dict[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        n, budget = self.strict_first_n, self.budget
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**63:
            raise LossyValueError(f"`strict_first_n` in `lossy_config` has to be an int >= 0 and < 2**63, but is {n!r}")
        if budget is not None and (
            isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget <= 1
        ):
            raise LossyValueError(f"`budget` in `lossy_config` has to be a number >= 0 and <= 1, but is {budget!r}")
        if self.scope is not None and self.markers is None:
            raise LossyValueError(
                f"`scope` in `lossy_config` has to be one of {list(MARKERS)} or a dict with `start` and `end`, each a "
                f"text, a token id or a list of ids, but is {self.scope!r}"
            )

    @property
    def markers(self) -> tuple[Any, Any] | None:
        """The opening and the closing marker as the user gave them; None for an unknown scope."""
        if isinstance(self.scope, str):
            return MARKERS.get(self.scope)
        if isinstance(self.scope, dict) and set(self.scope) == {"start", "end"}:
            pair = self.scope["start"], self.scope["end"]
            return pair if all(_is_marker(marker) for marker in pair) else None
        return None

    def bind(self, tokenizer: Any) -> BoundLimits | None:
        """Resolve the scope's markers into token ids; return None without limits."""
        if self == Limits():
            return None
        if self.scope is None:
            return BoundLimits(self, None)
        return BoundLimits(self, Scope(*(_ids(marker, tokenizer) for marker in self.markers)))


@dataclass(frozen=True)
class BoundLimits:
    limits: Limits
    scope: Scope | None

    def lossless_positions(
        self, candidate: Tensor, shape: Shape, generated: Sequence[int] | Tensor, lossy: Sequence[int] | Tensor
    ) -> LosslessPositions | None:
        """Return the positions that a round has to decide losslessly.

        ``candidate`` ``(B, L + n)`` are committed and drafted tokens; ``generated`` and ``lossy`` count, per row, the
        tokens generated so far and those kept lossily.
        """
        if len(shape) == 0:
            return None
        number = torch.as_tensor(generated, device=candidate.device)[:, None] + shape.depths  # in the output, from 1
        positions = number <= self.limits.strict_first_n
        if self.scope is not None:
            inside_before, inside = shape.along(candidate, self.scope.inside)
            positions = positions | ~(inside_before & inside)
        if self.limits.budget is None:
            return LosslessPositions(positions, None, shape)
        # In whole numbers, since 0.53 of 100 tokens rounds to less than 53.
        share = Fraction(self.limits.budget).limit_denominator(10**6)
        allowed = number * share.numerator // share.denominator
        return LosslessPositions(positions, allowed - torch.as_tensor(lossy, device=candidate.device)[:, None], shape)


def _is_marker(value: Any) -> bool:
    ids = value if isinstance(value, list | tuple) else [value]
    is_ids = bool(ids) and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**63 for i in ids)
    return is_ids or (isinstance(value, str) and value != "")


def _ids(marker: Any, tokenizer: Any) -> tuple[int, ...]:
    if not isinstance(marker, str):
        return tuple(marker) if isinstance(marker, list | tuple) else (marker,)
    if tokenizer is None:
        raise LossyValueError(
            f"`scope` in `lossy_config` has the marker {marker!r}, which needs a tokenizer; pass `tokenizer=` to "
            "generate(), or give the marker's token ids"
        )
    ids = tokenizer.encode(marker, add_special_tokens=False)
    if not ids or tokenizer.unk_token_id in ids:
        raise LossyValueError(
            f"`scope` in `lossy_config` has the marker {marker!r}, which the tokenizer does not know; give markers "
            'that the model uses, e.g. {"start": "<think>", "end": "</think>"}'
        )
    return tuple(ids)
