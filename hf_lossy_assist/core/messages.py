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

from .distributions import Randomness, residual
from .shapes import Chain, Shape
from .statistics import TokenScores
from .texts import RowShift
from .transfers import to_device
from .trees import Tree, along_path


@dataclass(frozen=True)
class DraftCost:
    """The cost of a proposal: forwards of the draft model, and tokens in them.

    ``looked_up`` tokens cost neither: the text gave them in a model's place.
    """

    calls: int = 0
    tokens: int = 0
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
        return allowed if self.shape.drafted is None else allowed & self.shape.drafted

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
        return residual(*self.p_and_q(at)) if self.do_sample else self.target_distribution(at)

    def p_and_q(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(B, V)`` p and q at one drafted position per row."""
        rows = torch.arange(len(at), device=at.device)
        return self.p[rows, at], self.proposed(at) if self.draft_logits is None else self.q[rows, at]

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
