"""One step of an engine, decided by rules: flat rows become a verification, and the decision becomes the step's output.

Notation: ``B`` requests, ``T`` drafted tokens of all requests one after the other, ``V`` vocabulary, ``n`` the longest
draft of a group. Everything runs on the tensors' device without waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...acceptors import DroppedHeads
from ...acceptors.base import decide
from ...call.config import RunConfig
from ...core.limits import BoundLimits
from ...core.messages import Decision, Verification
from ...core.shapes import Chain
from .randomness import KeyedRandomness, keys_of

NOTHING = -1
"""Where a request's output has no token."""


@dataclass(frozen=True, eq=False)
class EngineStep:
    """Flat tensors of one step."""

    tokens: Tensor  # (T,) drafted tokens
    logits: Tensor  # (T, V) processed float32 logits of p at them
    ends: Tensor  # (B,) where each request's tokens end
    counts: Sequence[int]  # (B,) how many tokens each request was given
    positions: Tensor  # (B,) the position of each request's newest committed token
    # (B,) the token that follows a draft that is kept whole. None where `logits` (T + B, V) have one more row for each
    # request, which predicts it.
    bonus: Tensor | None = None
    draft_probs: Tensor | None = None  # (T, V) q; None for a drafter without a distribution
    # (T + B, d) inputs of the target's LM head after each request's newest committed token and its drafted ones
    states: Tensor | None = None
    # Runs the dropped heads with random numbers by keys (T,): processed logits (T, K, V) of the K heads, and (T, V) of
    # their mean.
    dropped: Callable[[DroppedHeads, KeyedRandomness], tuple[Tensor, Tensor]] | None = None
    # Returns the committed tokens of the requests (G,) as (G, L), padded on the left.
    texts: Callable[[Sequence[int]], Tensor] | None = None

    @cached_property
    def lengths(self) -> Tensor:
        """``(B,)`` the counts, on the device."""
        return self.ends.diff(prepend=self.ends.new_zeros(1))

    @cached_property
    def starts(self) -> Tensor:
        """``(B,)`` where each request's tokens start."""
        return self.ends - self.lengths

    def spread(self, values: Tensor) -> Tensor:
        """Return ``(T,)`` the value of each drafted token's request."""
        return values.repeat_interleave(self.lengths, output_size=len(self.tokens))


@dataclass(frozen=True, eq=False)
class Group:
    """Requests of one rule that all draw, or all choose greedily."""

    config: RunConfig
    do_sample: bool
    limits: BoundLimits | None
    rows: list[int]  # the requests' numbers in the step
    index: Tensor | None  # (G,) these numbers on the device; None for all requests of the step
    seeds: Tensor  # (G,) of the requests
    prompts: Tensor  # (G,) the lengths of their prompts
    slots: Tensor  # (G,) their places among the tables' counts

    def of(self, values: Tensor) -> Tensor:
        return values if self.index is None else values[self.index]


@dataclass(eq=False)
class Tables:
    """Counts of every request's text so far, by slot, on the device."""

    size: int
    device: torch.device
    lossy: Tensor = field(init=False)  # tokens kept lossily
    charged: Tensor = field(init=False)  # against a budget over the whole text

    def __post_init__(self) -> None:
        self.lossy = torch.zeros(self.size, dtype=torch.long, device=self.device)
        self.charged = torch.zeros(self.size, device=self.device)

    def clear(self, slot: int) -> None:
        self.lossy[slot : slot + 1] = 0
        self.charged[slot : slot + 1] = 0


def decide_group(group: Group, step: EngineStep, tables: Tables) -> tuple[Tensor, Decision]:
    """Return ``(G, n + 1)`` the tokens that a group's requests keep, then :data:`NOTHING`, and the decision."""
    acceptor, n = group.config.acceptor, max(step.counts[row] for row in group.rows)
    starts, lengths = group.of(step.starts), group.of(step.lengths)
    columns = torch.arange(n, device=starts.device)
    flat = (starts[:, None] + columns).clamp_(max=max(0, len(step.tokens) - 1))
    tokens = step.tokens.long()[flat]
    # A grammar ends a draft at the first token that it forbids, and all after it are -1.
    allowed = ((tokens >= 0) & (columns < lengths[:, None])).long().cumprod(-1).sum(-1)
    shape = Chain(n, starts.device, allowed if n else None)
    v = Verification(
        tokens=tokens.clamp(min=0),
        do_sample=group.do_sample,
        randomness=KeyedRandomness(keys_of(group.seeds, group.of(step.positions))),
        shape=shape,
        charged=tables.charged[group.slots],
        **_answer(group, step, flat, starts, acceptor.needs),
        **_dropped(group, step, flat, acceptor.dropped_heads),
    )
    decision = decide(acceptor, v, _lossless_positions(group, step, v, tables))
    kept = columns < decision.n_accepted[:, None]
    tables.lossy.index_add_(0, group.slots, (kept & ~decision.lossless).sum(-1))
    if decision.charge is not None:
        tables.charged.index_add_(0, group.slots, decision.charge)
    tokens = torch.where(kept, v.tokens, NOTHING)
    ends = decision.next_token
    if step.bonus is not None:
        ends = torch.where(decision.n_accepted == lengths, group.of(step.bonus), ends)
    output = torch.cat([tokens, tokens.new_full((len(tokens), 1), NOTHING)], dim=-1)
    return output.scatter_(-1, decision.n_accepted[:, None], ends.long()[:, None]), decision


def _answer(group: Group, step: EngineStep, flat: Tensor, starts: Tensor, needs: frozenset[str]) -> dict[str, Any]:
    """Return the target's answer to padded drafts; where the step has bonus tokens, the last logits are arbitrary."""
    more = torch.arange(flat.shape[1] + 1, device=flat.device)
    first = group.of(step.starts + torch.arange(len(step.ends), device=flat.device))
    rows = (first if step.bonus is None else starts)[:, None] + more
    answer: dict[str, Any] = {"logits": step.logits[rows.clamp_(max=max(0, len(step.logits) - 1))]}
    if step.draft_probs is not None:
        answer["draft_logits"] = step.draft_probs[flat].log()
    if "hidden" in needs:
        answer["hidden"] = step.states[(first[:, None] + more).clamp_(max=len(step.states) - 1)]
    return answer


def _dropped(group: Group, step: EngineStep, flat: Tensor, heads: DroppedHeads | None) -> dict[str, Tensor]:
    if heads is None or flat.shape[1] == 0:
        return {}
    seeds = step.ends.new_zeros(len(step.ends), dtype=torch.long)
    rows = torch.arange(len(seeds), device=seeds.device) if group.index is None else group.index
    seeds = seeds.scatter(0, rows, group.seeds)
    places = step.spread(step.positions - step.starts) + torch.arange(len(step.tokens), device=seeds.device)
    paths, mean = step.dropped(heads, KeyedRandomness(~keys_of(step.spread(seeds), places)))
    return {"dropped_logits": paths[flat].transpose(1, 2), "centroid_logits": mean[flat]}


def _lossless_positions(group: Group, step: EngineStep, v: Verification, tables: Tables) -> Any:
    if group.limits is None:
        return None
    text = v.tokens if group.limits.scope is None else torch.cat([step.texts(group.rows), v.tokens], dim=-1)
    generated = group.of(step.positions) + 1 - group.prompts
    return group.limits.lossless_positions(text, v.shape, generated, tables.lossy[group.slots])


@dataclass(eq=False)
class RoundCounts:
    """The drafted tokens that a group's requests kept in one step, on their way to the host.

    ``packed`` ``(G, 1 + M · n)`` holds how many tokens stay, then one mask for the lossless rule and one for each rule.
    """

    requests: list[str]
    drafted: list[int]
    rules: tuple[str, ...]
    packed: Tensor

    @classmethod
    def of(cls, decision: Decision, requests: list[str], drafted: list[int]) -> RoundCounts:
        masks = [decision.lossless, *decision.kept_by.values()]
        packed = torch.cat([decision.n_accepted[:, None], *masks], dim=-1).to(torch.int16)
        if packed.is_cuda:
            # The engine waits for its own copy of the tokens, which comes later on the same stream.
            packed = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True).copy_(packed, non_blocking=True)
        return cls(requests, drafted, tuple(decision.kept_by), packed)

    def by_request(self) -> dict[str, RequestRound]:
        n = (self.packed.shape[1] - 1) // (1 + len(self.rules))
        rounds = {}
        for request, drafted, (kept, *masks) in zip(self.requests, self.drafted, self.packed.tolist(), strict=True):
            lossless, *by_rule = (masks[i * n : (i + 1) * n] for i in range(1 + len(self.rules)))
            rounds[request] = RequestRound(drafted, kept, lossless, dict(zip(self.rules, by_rule, strict=True)))
        return rounds


@dataclass(frozen=True)
class RequestRound:
    """One request's round: tokens drafted and kept, and 0 or 1 per drafted token for the lossless rule and for each."""

    drafted: int
    kept: int
    lossless: list[int]
    kept_by: dict[str, list[int]]

    def add_to(self, totals: dict[str, Any], committed: int) -> None:
        """Add what reached the output: ``committed`` tokens, since a stop may cut a round short."""
        kept = min(self.kept, committed)
        counts = {"drafted": self.drafted, "accepted": kept, "accepted_lossy": kept - sum(self.lossless[:kept])}
        for name, count in counts.items():
            totals[name] = totals.get(name, 0) + count
        by_rule = totals.setdefault("accepted_by", {})
        for rule, mask in self.kept_by.items():
            by_rule[rule] = by_rule.get(rule, 0) + sum(mask[:kept])
