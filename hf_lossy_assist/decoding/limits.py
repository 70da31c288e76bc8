"""Where a run may be lossy: not in its first tokens, only in a part of the text, only so often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import LossyValueError

if TYPE_CHECKING:
    from ..trees import Tree

MARKERS = {"thinking": ("<think>", "</think>")}
"""Named scopes and the texts that open and close them."""


@dataclass(frozen=True, eq=False)
class LosslessPositions:
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
        return self.positions | (lossy & (self._upto(lossy) > self.allowance))

    def _upto(self, lossy: Tensor) -> Tensor:
        """Return ``(B, n)`` how many tokens of a mask there are up to each, itself included."""
        return lossy.cumsum(-1)

    def after(self, trusted: Tensor) -> LosslessPositions:
        """Return the same about one column of each row, ``trusted`` ``(B,)``: those before it are kept lossily."""
        column = trusted[:, None]
        allowance = None if self.allowance is None else self.allowance.gather(1, column) - column
        return LosslessPositions(self.positions.gather(1, column), allowance)


@dataclass(frozen=True, eq=False)
class LosslessNodes(LosslessPositions):
    """The same of a round of trees, whose paths count alone.

    Attributes
    ----------
    tree
        The trees.
    """

    tree: Tree | None = None

    def _upto(self, lossy: Tensor) -> Tensor:
        return (self.tree.ancestors & lossy[:, None]).sum(-1)


@dataclass(frozen=True)
class Scope:
    """The part of a text between two markers, as token ids.

    Attributes
    ----------
    start, end
        The tokens of the marker that opens the part, and of the one that closes it.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]

    def inside(self, ids: Tensor) -> Tensor:
        """Return ``(B, L)`` whether the text is inside the part after each token; the closing marker is not."""
        opened, closed = (_last_match(ids, marker) for marker in (self.start, self.end))
        return opened > closed


def _last_match(ids: Tensor, marker: tuple[int, ...]) -> Tensor:
    """Return ``(B, L)`` the end of the marker's last occurrence up to each position, -1 where there is none."""
    length = ids.shape[1]
    ends = torch.full_like(ids, -1)
    if length >= len(marker):
        found = (ids.unfold(1, len(marker), 1) == torch.tensor(marker, device=ids.device)).all(-1)
        at = torch.arange(len(marker) - 1, length, device=ids.device).expand_as(found)
        ends[:, len(marker) - 1 :] = torch.where(found, at, -1)
    return ends.cummax(-1).values


@dataclass(frozen=True)
class Limits:
    """Bounds on where and how often a run is lossy; everywhere else the lossless rule decides.

    Attributes
    ----------
    strict_first_n
        The first n generated tokens are lossless.
    budget
        At most this share of a sequence's generated tokens, so far, is kept lossily; None for any share.
    scope
        ``"thinking"``, or a dict with ``start`` and ``end``, each a text, a token id or a list of ids: lossy only
        between these markers, also where the prompt holds the first. The closing marker itself is lossless.

    Examples
    --------
    >>> Limits(strict_first_n=16, budget=0.1)
    Limits(strict_first_n=16, budget=0.1, scope=None)
    """

    strict_first_n: int = 0
    budget: float | None = None
    scope: str | dict[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        n, budget = self.strict_first_n, self.budget
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**63:
            raise LossyValueError(f"`strict_first_n` in `lossy_config` has to be an int >= 0 and < 2**63, but is {n!r}")
        if budget is not None and (
            isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget <= 1
        ):
            raise LossyValueError(f"`budget` in `lossy_config` has to be a number >= 0 and <= 1, but is {budget!r}")
        markers = self.markers
        if self.scope is not None and markers is None:
            raise LossyValueError(
                f"`scope` in `lossy_config` has to be one of {list(MARKERS)} or a dict with `start` and `end`, each a "
                f"text, a token id or a list of ids, but is {self.scope!r}"
            )

    @property
    def markers(self) -> tuple[Any, Any] | None:
        """The opening and the closing marker as the user gave them."""
        if isinstance(self.scope, str):
            return MARKERS.get(self.scope)
        if isinstance(self.scope, dict) and set(self.scope) == {"start", "end"}:
            pair = self.scope["start"], self.scope["end"]
            return pair if all(_is_marker(marker) for marker in pair) else None
        return None

    @property
    def everywhere_lossy(self) -> bool:
        """Whether there is no bound at all."""
        return self.strict_first_n == 0 and self.budget is None and self.scope is None

    def bind(self, tokenizer: Any) -> BoundLimits | None:
        """Resolve the scope's markers into token ids; None where there is no bound at all.

        Raises
        ------
        LossyValueError
            Where a marker is a text and there is no tokenizer, or the tokenizer has no tokens for it.
        """
        if self.everywhere_lossy:
            return None
        if self.scope is None:
            return BoundLimits(self, None)
        return BoundLimits(self, Scope(*(_ids(marker, tokenizer) for marker in self.markers)))


@dataclass(frozen=True)
class BoundLimits:
    """Limits with the scope's markers as token ids.

    Attributes
    ----------
    limits
        As configured.
    scope
        The part of the text that may be lossy, or None for all of it.
    """

    limits: Limits
    scope: Scope | None

    def lossless_positions(
        self, candidate: Tensor, drafted: int, generated: Sequence[int], lossy: Sequence[int]
    ) -> LosslessPositions | None:
        """Say where a round has to be lossless.

        Parameters
        ----------
        candidate
            ``(B, L + n)`` committed and drafted tokens.
        drafted
            n.
        generated, lossy
            Per row: tokens generated so far, and those of them kept lossily.
        """
        if drafted == 0:
            return None
        numbers = torch.arange(1, drafted + 1, device=candidate.device)
        scope = None
        if self.scope is not None:
            inside = self.scope.inside(candidate)
            scope = inside[:, -drafted - 1 : -1] & inside[:, -drafted:]
        return LosslessPositions(*self._of(numbers, scope, generated, lossy))

    def lossless_nodes(
        self, candidate: Tensor, tree: Tree, generated: Sequence[int], lossy: Sequence[int]
    ) -> LosslessPositions:
        """Say the same of trees, whose nodes are the last tokens of ``candidate``: each of its own path."""
        n, scope = len(tree), None
        if self.scope is not None:
            text, nodes = candidate[:, :-n], candidate[:, -n:]
            paths = nodes[tree.rows[..., None], tree.paths]
            texts = torch.cat([text[:, None].expand(-1, n, -1), paths], dim=-1)
            inside = self.scope.inside(texts.flatten(0, 1)).view(texts.shape)
            end = text.shape[1] + tree.depths[..., None]
            scope = (inside.gather(-1, end - 2) & inside.gather(-1, end - 1))[..., 0]
        return LosslessNodes(*self._of(tree.depths, scope, generated, lossy), tree)

    def _of(
        self, ahead: Tensor, scope: Tensor | None, generated: Sequence[int], lossy: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Return which drafted tokens have to be lossless, and how many up to each may not be.

        ``ahead`` says how many tokens after the text each is, and ``scope`` whether it is inside, where there is one.
        """
        number = torch.tensor(generated, device=ahead.device)[:, None] + ahead  # of the output's tokens, from 1
        positions = number <= self.limits.strict_first_n
        if scope is not None:
            positions = positions | ~scope
        if self.limits.budget is None:
            return positions, None
        # An hair of slack, so that 0.1 of 10 tokens is 1.
        allowed = (number * self.limits.budget + 1e-6).floor().long()
        return positions, allowed - torch.tensor(lossy, device=ahead.device)[:, None]


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
