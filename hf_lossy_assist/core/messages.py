"""The messages between the stages of a round. Every tensor has the batch dimension first.

Notation: ``B`` rows, ``n`` drafted tokens, ``V`` vocabulary, ``p`` the target, ``q`` the draft, both after
the user's logits processors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .shapes import Chain, Shape
from .texts import RowShift
from .token_records import TokenScores
from .trees import Tree, along_path
from .verification import Verification


@dataclass(frozen=True)
class DraftCost:
    """The cost of a proposal: forwards of the draft model, tokens in them, and tokens that a head scored."""

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
        ``(B, n, V)`` processed logits of q, or None for a drafter without a distribution.
    hidden
        ``(B, n, d)`` the draft model's states that predicted the tokens, for rules that need them.
    lengths
        How many tokens each row was given, the rest being filler; None if all rows have n.
    tree
        Which token follows which; None for a chain.
    unverified
        How many tokens at the front of each row are committed without the target, or None for none. The target decides
        the next token, if the row has one.
    bonus
        Whether a token of the target's own follows a row whose tokens are all kept.
    scores
        ``(B, n)`` a head's scores of the tokens, for a rule that commits tokens by its scores.
    cost, target_inputs
        The cost of the proposal, and inputs of the target's forward that the drafter requires.
    """

    tokens: Tensor
    logits: Tensor | None = None
    hidden: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    tree: Tree | None = None
    unverified: tuple[int, ...] | None = None
    bonus: bool = True
    scores: Tensor | None = None
    cost: DraftCost = DraftCost()
    target_inputs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls, ids: Tensor) -> Draft:
        """Return a draft without tokens after ``ids`` ``(B, L)``."""
        return cls(ids[:, :0])

    def __len__(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def shape(self) -> Shape:
        """Which token follows which."""
        return Chain(len(self), self.tokens.device, self.lengths) if self.tree is None else self.tree

    def unverified_in(self, row: int) -> int:
        """Return how many tokens of a row are committed without the target."""
        return 0 if self.unverified is None else self.unverified[row]

    def undecided_in(self, row: int) -> int:
        """Return how many tokens of a row the target decides."""
        return (len(self) if self.lengths is None else self.lengths[row]) - self.unverified_in(row)

    @cached_property
    def undecided_rows(self) -> tuple[int, ...]:
        """The rows that the target decides: all but those whose text ended in unverified tokens."""
        return tuple(row for row in range(len(self.tokens)) if self.unverified is None or self.undecided_in(row))

    @cached_property
    def first_undecided(self) -> Tensor:
        """``(B,)`` the column that the target decides after unverified tokens; arbitrary if the row has none."""
        counts = torch.tensor(self.unverified or (0,) * len(self.tokens), device=self.tokens.device)
        return counts.clamp(max=len(self) - 1)

    def without_unverified(self) -> Draft:
        """Return the columns with a token for the target to decide."""
        if self.unverified is None:
            return self
        start = min(self.unverified[row] for row in self.undecided_rows)
        return replace(
            self,
            tokens=self.tokens[:, start:],
            logits=None if self.logits is None else self.logits[:, start:],
            hidden=None if self.hidden is None else self.hidden[:, start:],
            lengths=None,
            unverified=tuple(max(0, n - start) for n in self.unverified),
        )


@dataclass(frozen=True, eq=False)
class TargetOutput:
    """Verification → outputs and drafters: the target's forward, apart from what rules read of it.

    Attributes
    ----------
    outputs
        The forward's output.
    raw_logits
        ``(B, n + 1, V)`` its logits before the processors, if the caller asked for them.
    """

    outputs: Any
    raw_logits: Tensor | None = None

    def along(self, path: Tensor | None, nodes: int) -> TargetOutput:
        """Return the output about one path ``(B, k)`` of trees with so many nodes; None returns a chain's itself."""
        if path is None:
            return self
        given, raw = self.outputs, self.raw_logits
        states, weights = (getattr(given, name, None) for name in ("hidden_states", "attentions"))
        if states is not None:
            states = tuple(along_path(layer, path, nodes) for layer in states)
        if weights is not None:
            weights = tuple(along_path(along_path(layer, path, nodes, 2), path, nodes, 3) for layer in weights)
        return TargetOutput(
            SimpleNamespace(hidden_states=states, attentions=weights),
            None if raw is None else along_path(raw, path, nodes),
        )


@dataclass(frozen=True, eq=False)
class Decision:
    """Acceptor → commit: the drafted tokens that stay, and the token that follows them.

    Attributes
    ----------
    keep
        ``(B, n)`` whether the rule keeps each drafted token on its own.
    n_accepted
        ``(B,)`` how many tokens stay: a prefix of a chain, a path of a tree.
    next_token
        ``(B,)`` the correction, or the bonus token if nothing was drafted after the tokens that stay.
    complete
        ``(B,)`` whether nothing was drafted after the tokens that stay.
    lossless
        ``(B, n)`` which tokens the lossless rule would have kept.
    kept_by
        For every rule, ``(B, n)`` the tokens credited to it.
    path
        ``(B, k)`` the columns of a tree that stay, ``n_accepted`` of them in order; None for a chain.
    charge
        ``(B,)`` what the kept tokens cost their texts; None for a rule without a budget.
    """

    keep: Tensor
    n_accepted: Tensor
    next_token: Tensor
    complete: Tensor
    lossless: Tensor
    kept_by: Mapping[str, Tensor]
    path: Tensor | None = None
    charge: Tensor | None = None

    def along_path(self, values: Tensor) -> Tensor:
        """Return ``(B, k)`` the values ``(B, n)`` of the path, or all values of a chain."""
        return values if self.path is None else values.gather(-1, self.path)

    def to_host(self, draft: Draft) -> list[RowDecision]:
        """Return every row's decision after one transfer, the round's only synchronisation."""
        masks = {id(mask): mask for mask in (self.lossless, *self.kept_by.values())}  # rules often share one
        ends = [x.unsqueeze(-1) for x in (self.n_accepted, self.next_token, self.complete)]
        charge = [] if self.charge is None else [self.charge.unsqueeze(-1).view(torch.int32)]
        tokens, decided = self.along_path(draft.tokens), [self.along_path(mask) for mask in masks.values()]
        packed = torch.cat([*ends, tokens, *decided, *charge], dim=-1).tolist()
        start, width = 3 + tokens.shape[1], decided[0].shape[1]
        columns = {key: slice(start + i * width, start + (i + 1) * width) for i, key in enumerate(masks)}
        lossless = columns[id(self.lossless)]
        kept_by = {rule: columns[id(mask)] for rule, mask in self.kept_by.items()}
        rows = []
        for i, row in enumerate(packed):
            unverified, n_accepted, complete = draft.unverified_in(i), row[0], bool(row[2])
            if unverified and not draft.undecided_in(i):
                rows.append(RowDecision.without_target(row[3 : 3 + unverified]))
                continue
            kept = row[3 : 3 + unverified + n_accepted]
            if draft.bonus or not complete:
                kept.append(row[1])
            by_rule = {rule: row[at] for rule, at in kept_by.items()}
            cost = 0.0 if self.charge is None else struct.unpack("f", struct.pack("i", row[-1]))[0]
            rows.append(RowDecision(unverified, n_accepted, kept, complete, row[lossless], by_rule, cost))
        return rows


@dataclass(frozen=True)
class RowDecision:
    """A round's decision about one row, on the host."""

    unverified: int  # tokens at the front, committed without the target
    n_accepted: int  # how many of the tokens after them stay
    tokens: list[int]  # all tokens that stay, and the target's own after them, if any
    complete: bool = True  # whether nothing was drafted after the tokens that stay
    lossless: list[int] = field(default_factory=list)  # 0 or 1 for each token that the target decided, as in `Decision`
    kept_by: dict[str, list[int]] = field(default_factory=dict)  # likewise, by rule
    charge: float = 0.0  # what the accepted tokens cost the text
    scores: tuple[TokenScores, ...] = ()  # the models' scores of `tokens`, in a run that is inspected

    @classmethod
    def without_target(cls, tokens: list[int]) -> RowDecision:
        """Return the decision about a row that has ended in unverified tokens."""
        return cls(len(tokens), 0, tokens)


@dataclass(frozen=True, eq=False)
class Commit:
    """Commit → target and drafter: the tokens that a round has added to the texts.

    Attributes
    ----------
    ids
        ``(B, W + n + 1)`` the texts with the whole round.
    start
        W, the texts' width before.
    drafted
        n.
    accepted
        Drafted tokens that each row kept, unverified ones included.
    counts
        Tokens that each row's text has grown by.
    rows
        The rows' numbers in the batch.
    padding
        Columns of padding before each row's text.
    verification
        The target's answer, or None if it was not asked.
    outputs
        The output of the target's forward, or None.
    shift
        How the rows move into the next round's rectangle; None if they stay.
    path
        ``(B, k)`` the columns of a tree that stay, in order; shorter paths end in arbitrary columns. None for a chain.
    """

    ids: Tensor
    start: int
    drafted: int
    accepted: tuple[int, ...]
    counts: tuple[int, ...]
    rows: tuple[int, ...]
    padding: tuple[int, ...]
    verification: Verification | None
    outputs: Any = None
    shift: RowShift | None = None
    path: Tensor | None = None

    @property
    def width(self) -> int:
        """The texts' new width, if rows do not move."""
        return self.start + max(self.counts)

    def text(self, i: int) -> Tensor:
        """``(1, L)`` the new text of the i-th row."""
        return self.ids[i : i + 1, self.padding[i] : self.start + self.counts[i]]
