"""The messages between the stages of a round: ``Draft`` → ``Verification`` → ``Decision`` → ``Commit``.

The words of a round:

- *target*, p: the large model, whose text is wanted. *draft*, q: the small model; also what it proposes. Both
  distributions are those after the user's logits processors.
- *round*: one draft, one forward of the target over it, one decision. γ is the number of tokens that a draft may have,
  n the number that it has.
- *drafted* tokens: what the draft proposes, one after another (a *chain*) or with several continuations (a *tree*).
- *verification*: what the target says about every drafted token, and about the token after the last one.
- *acceptance rule*: decides which drafted tokens are kept.
- *accepted* or *kept* tokens: the drafted tokens up to the first one that the rule rejects; in a tree, along one path.
- *lossily accepted*: kept by the rule where the lossless rule, with the same random numbers, would have rejected.
- *correction*: the token that the target writes in place of a rejected one.
- *bonus*: the token that the target writes where nothing was rejected.
- *committed* tokens: those that are part of the text for good: accepted ones, then the correction or the bonus.
- *source*: proposes q. *strategy*: drafts from a source. *runner*: runs a model, and alone knows its cache.
- *position*: the place of one drafted token. *row*: one text of a batch.

Shapes: ``B`` rows, ``n`` drafted tokens, ``V`` vocabulary. Every tensor has the batch dimension first.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
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
from .verification import Verification as Verification


@dataclass(frozen=True)
class DraftCost:
    """The cost of a proposal: forwards of the draft model, tokens in them, and tokens that a head scored.

    ``looked_up`` tokens cost none of these: the text gave them in a model's place.
    """

    calls: int = 0
    tokens: int = 0
    scored: int = 0
    looked_up: int = 0


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
    cost, target_inputs
        The cost of the proposal, and inputs of the target's forward that the drafter requires.
    """

    tokens: Tensor
    logits: Tensor | None = None
    hidden: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    tree: Tree | None = None
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
        ``(B,)`` the correction, or the bonus token if nothing was drafted after the tokens that stay; -1 where nothing
        could be drawn.
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
        """Return every row's decision after one transfer, the round's only synchronisation.

        Raises ``RuntimeError`` where no token could be drawn.
        """
        masks = {id(mask): mask for mask in (self.lossless, *self.kept_by.values())}  # rules often share one
        ends = [x.unsqueeze(-1) for x in (self.n_accepted, self.next_token, self.complete)]
        charge = [] if self.charge is None else [self.charge.unsqueeze(-1).view(torch.int32)]
        tokens, decided = self.along_path(draft.tokens), [self.along_path(mask) for mask in masks.values()]
        packed = torch.cat([*ends, tokens, *decided, *charge], dim=-1).tolist()
        if any(row[1] < 0 for row in packed):
            raise RuntimeError(
                "no token can be drawn, because the target's probabilities are infinite, NaN or all zero; load it in "
                "bfloat16 instead of float16, and check `logits_processor`"
            )
        start, width = 3 + tokens.shape[1], decided[0].shape[1]
        columns = {key: slice(start + i * width, start + (i + 1) * width) for i, key in enumerate(masks)}
        lossless = columns[id(self.lossless)]
        kept_by = {rule: columns[id(mask)] for rule, mask in self.kept_by.items()}
        drafted = (len(draft),) * len(packed) if draft.lengths is None else draft.lengths
        rows = []
        for given, row in zip(drafted, packed, strict=True):
            kept, complete = [*row[3 : 3 + row[0]], row[1]], bool(row[2])
            by_rule = {rule: row[at] for rule, at in kept_by.items()}
            cost = 0.0 if self.charge is None else struct.unpack("f", struct.pack("i", row[-1]))[0]
            rows.append(RowDecision(given, row[0], kept, complete, row[lossless], by_rule, cost))
        return rows


@dataclass(frozen=True)
class RowDecision:
    """A round's decision about one row, on the host."""

    drafted: int  # how many tokens the row was given
    n_accepted: int  # how many of them stay
    tokens: list[int]  # the tokens that stay, and the target's own after them
    complete: bool = True  # whether nothing was drafted after the tokens that stay
    lossless: list[int] = field(default_factory=list)  # 0 or 1 for each drafted token, as in `Decision`
    kept_by: dict[str, list[int]] = field(default_factory=dict)  # likewise, by rule
    charge: float = 0.0  # what the accepted tokens cost the text
    scores: tuple[TokenScores, ...] = ()  # the models' scores of `tokens`, in a run that is inspected


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
        Drafted tokens that each row kept.
    counts
        Tokens that each row's text has grown by.
    rows
        The rows' numbers in the batch.
    padding
        Columns of padding before each row's text.
    logits
        ``(B, n + 1, V)`` the target's processed logits, or None if it was not asked.
    outputs
        The output of the target's forward, or None.
    shift
        How the rows move into the next round's rectangle; None if they stay.
    path
        ``(B, k)`` the columns of a tree that stay, in order; shorter paths end in arbitrary columns. None for a chain.
    tokens
        On the host, the tokens that the target has decided on in each row; of these, the text has grown by the first.
    """

    ids: Tensor
    start: int
    drafted: int
    accepted: tuple[int, ...]
    counts: tuple[int, ...]
    rows: tuple[int, ...]
    padding: tuple[int, ...]
    logits: Tensor | None
    outputs: Any = None
    shift: RowShift | None = None
    path: Tensor | None = None
    tokens: tuple[Sequence[int], ...] = ()

    @property
    def width(self) -> int:
        """The texts' new width, if rows do not move."""
        return self.start + max(self.counts)

    def of_row(self, i: int) -> Commit:
        """Return the same about the i-th row alone, without its padding."""
        one, padding = slice(i, i + 1), self.padding[i]
        return replace(
            self,
            ids=self.ids[one, padding:],
            start=self.start - padding,
            accepted=self.accepted[one],
            counts=self.counts[one],
            rows=self.rows[one],
            padding=(0,),
            logits=None if self.logits is None else self.logits[one],
            shift=None,
            tokens=self.tokens[one],
        )
