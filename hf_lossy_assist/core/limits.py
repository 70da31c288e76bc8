"""Limits on where a run may be lossy: after its first tokens, in parts of the text, beside quotes, or up to a share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from ..errors import LossyValueError
from ..values import LARGEST_INT, SETTINGS, Checked, bounded
from .shapes import Shape
from .transfers import to_device

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
        used_up = self.shape.so_far(lossy) - lossy.long() >= self.allowance
        return self.positions | (used_up & ~(keep & lossless))  # also where the rule would refuse and correct


@dataclass(frozen=True)
class Span:
    """The parts of a text from one marker to another, as token ids; one marker for both opens and closes in turn."""

    start: tuple[int, ...]
    end: tuple[int, ...]

    def inside(self, ids: Tensor) -> Tensor:
        """Return ``(B, L)`` whether a part is open after each token; the closing marker is outside."""
        if self.start == self.end:
            return _matches(ids, self.start).cumsum(-1) % 2 == 1
        at = torch.arange(ids.shape[1], device=ids.device)
        # The end of each marker's last occurrence so far, or -1.
        opened, closed = (torch.where(_matches(ids, x), at, -1).cummax(-1).values for x in (self.start, self.end))
        return opened > closed


def _matches(ids: Tensor, marker: tuple[int, ...]) -> Tensor:
    """Return ``(B, L)`` whether the marker ends at each position."""
    found = torch.zeros_like(ids, dtype=torch.bool)
    if ids.shape[1] >= len(marker):
        spans = ids.unfold(1, len(marker), 1)
        found[:, len(marker) - 1 :] = (spans == to_device(marker, ids.device)).all(-1)
    return found


@dataclass(frozen=True)
class Scope:
    """The part of a text in which a run may be lossy: within one span, if there is one, and outside of others."""

    within: Span | None
    outside: tuple[Span, ...] = ()

    def covers(self, ids: Tensor) -> Tensor:
        """Return ``(B, L)`` whether the text is in scope after each token."""
        covered = torch.ones_like(ids, dtype=torch.bool) if self.within is None else self.within.inside(ids)
        for span in self.outside:
            covered = covered & ~span.inside(ids)
        return covered


def quoted(ids: Tensor, prompts: Tensor, n: int) -> Tensor:
    """Return ``(R, L)`` whether the n tokens up to each stand in the row's prompt, where the prompt goes on.

    Equally many of the R texts belong to each of the prompts ``(B, P)``, whose padding is negative.
    """
    found = torch.zeros_like(ids, dtype=torch.bool)
    ends, places = ids.shape[1] - n + 1, prompts.shape[1] - n
    if ends > 0 and places > 0:
        equal = ids[:, :, None] == prompts.repeat_interleave(len(ids) // len(prompts), dim=0)[:, None]
        spans = torch.stack([equal[:, i : i + ends, i : i + places] for i in range(n)])
        found[:, n - 1 :] = spans.all(0).any(-1)
    return found


@dataclass(frozen=True)
class Limits(Checked):
    """Limits on where and how often a run is lossy; everywhere else the lossless rule decides.

    The markers of a scope may be in the prompt too. The last token of a marker is lossless.
    """

    where = SETTINGS
    # the first n generated tokens are lossless
    strict_first_n: Annotated[int, bounded(0, LARGEST_INT, integer=True)] = 0
    # the largest share of the tokens generated so far to be kept lossily
    budget: Annotated[float | None, bounded(0, 1)] = None
    # lossy only between markers: "thinking", or a dict with `start` and `end` (text, token id or ids); or, in a dict
    # with `except`, lossless between each of these pairs of markers
    scope: str | dict[str, Any] | None = field(default=None, hash=False)
    # a token after n tokens that stand in the prompt too is lossless
    strict_on_quotes: Annotated[int | None, bounded(1, LARGEST_INT, integer=True)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scope is not None and self.markers is None:
            raise LossyValueError(
                f"`scope` in `lossy_config` has to be one of {list(MARKERS)} or a dict with `start` and `end`, with "
                "`except` (a list of pairs), or with all three; each marker is a text, a token id or a list of ids; "
                f"but it is {self.scope!r}"
            )

    @property
    def markers(self) -> list[tuple[Any, Any] | None] | None:
        """The scope's pairs of markers as the user gave them: those that it is within, or None, then the exceptions.

        None for an unknown scope.
        """
        if isinstance(self.scope, str) and self.scope in MARKERS:
            return [MARKERS[self.scope]]
        if not isinstance(self.scope, dict) or self.scope.keys() not in _SCOPES:
            return None
        outside = self.scope.get("except", [])
        pairs = [(self.scope["start"], self.scope["end"])] if "start" in self.scope else []
        if not isinstance(outside, list | tuple) or not all(map(_is_pair, [*pairs, *outside])):
            return None
        return [*(pairs or [None]), *map(tuple, outside)]

    @property
    def reads_text(self) -> bool:
        """Whether more than the number of generated tokens says where the run may be lossy."""
        return self.scope is not None or self.strict_on_quotes is not None

    def bind(self, tokenizer: Any, structured: bool = False) -> BoundLimits | None:
        """Resolve the scope's markers into token ids; return None without limits.

        A ``structured`` text, which follows a grammar, is lossless throughout, unless a scope says where it is not.
        """
        limits = replace(self, strict_first_n=2**63 - 1) if structured and self.scope is None else self
        if limits == UNLIMITED:
            return None
        if limits.scope is None:
            return BoundLimits(limits, None)
        within, *outside = (
            None if pair is None else Span(*(_ids(marker, tokenizer) for marker in pair)) for pair in self.markers
        )
        return BoundLimits(limits, Scope(within, tuple(outside)))


UNLIMITED = Limits()
_SCOPES = ({"start", "end"}, {"except"}, {"start", "end", "except"})


@dataclass(frozen=True)
class BoundLimits:
    limits: Limits
    scope: Scope | None

    def lossless_positions(
        self,
        candidate: Tensor,
        shape: Shape,
        generated: Sequence[int] | Tensor,
        lossy: Sequence[int] | Tensor,
        prompts: Tensor | None = None,
    ) -> LosslessPositions | None:
        """Return the positions that a round has to decide losslessly.

        ``candidate`` ``(B, L + n)`` are committed and drafted tokens; ``generated`` and ``lossy`` count, per row, the
        tokens generated so far and those kept lossily. ``prompts`` ``(B, P)``, with negative padding, are what texts
        may quote.
        """
        if len(shape) == 0:
            return None
        number = _column(generated, candidate.device) + shape.depths  # in the output, from 1
        positions = number <= self.limits.strict_first_n
        if self.scope is not None:
            before, after = shape.along(candidate, self.scope.covers)
            positions = positions | ~(before & after)
        if (n := self.limits.strict_on_quotes) is not None and prompts is not None:
            newest = candidate[:, -len(shape) - n :]  # a token after a quote is lossless, whatever it is
            positions = positions | shape.along(newest, partial(quoted, prompts=prompts, n=n))[0]
        if self.limits.budget is None:
            return LosslessPositions(positions, None, shape)
        # In whole numbers, since 0.53 of 100 tokens rounds to less than 53.
        share = Fraction(self.limits.budget).limit_denominator(10**6)
        allowed = number * share.numerator // share.denominator
        return LosslessPositions(positions, allowed - _column(lossy, candidate.device), shape)


def _column(counts: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    return (counts.to(device) if isinstance(counts, Tensor) else to_device(counts, device))[:, None]


def _is_marker(value: Any) -> bool:
    ids = value if isinstance(value, list | tuple) else [value]
    is_ids = bool(ids) and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**63 for i in ids)
    return is_ids or (isinstance(value, str) and value != "")


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_marker, value))


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
