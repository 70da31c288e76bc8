"""One step of an engine, decided by rules: flat rows become a verification, and the decision becomes the step's output.

Requests are sorted by rule before. Random numbers follow from a request's seed and a position in
its text, and from nothing else.

Notation: ``B`` requests, ``T`` drafted tokens of all requests one after the other, ``V`` vocabulary, ``n`` the longest
draft of a group. Everything runs on the tensors' device without waiting for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...acceptors import DroppedHeads
from ...acceptors.base import decide
from ...core.distributions import STEP, Randomness, mixed
from ...core.limits import BoundLimits
from ...core.messages import Decision, Verification
from ...core.shapes import Chain
from ...generation.config import LossyConfig
from .settings import EngineSettings

NOTHING = -1
"""Where a request's output has no token."""


def seed_of(request: str, seed: int) -> int:
    """Return the seed of a request without its own: processes of one engine agree on it, and requests differ."""
    digest = hashlib.blake2b(f"{seed}:{request}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def keys_of(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return ``(N,)`` one key for each seed and position, all int64."""
    return mixed(seeds + mixed(positions.long() + 1))


class KeyedRandomness(Randomness):
    """Draws that depend on one key per row ``(B,)`` only, whichever rows, processes and rounds there are."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self._draws = 0

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        return (self._bits(shape) >> 40 & 0xFFFFFF).float().mul_(2.0**-24)

    def categorical(self, weights: Tensor) -> Tensor:
        sums = weights.double().cumsum(-1)
        u = (self._bits(weights.shape[:-1]) >> 11 & (1 << 53) - 1).double().mul_(2.0**-53)
        return torch.searchsorted(sums, (u * sums[..., -1])[..., None], right=True)[..., 0].clamp_(
            max=sums.shape[-1] - 1
        )

    def keep_mask(self, shape: tuple[int, ...], rate: float | Tensor, like: Tensor) -> Tensor:
        return (self.uniform(shape, like.device) >= rate).to(like.dtype) / (1 - rate)

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        """Return 64 random bits for each cell of ``shape``, whose first dimension is that of the keys."""
        self._draws += 1
        rows = mixed(self.keys + self._draws)
        cells = torch.arange(1, prod(shape[1:]) + 1, device=rows.device) * STEP
        return mixed(rows[:, None] + cells).reshape(shape)


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
class Rows:
    """A step as vLLM's model runner V2 lays it out: a row for each request's newest token and for each drafted one."""

    ends: Tensor  # (B + 1,) where each request's rows start, and the end
    counts: Sequence[int]  # (B,) how many tokens each request was given
    inputs: Tensor  # (T + B,) the tokens that were read; negative where a draft ends earlier
    positions: Tensor  # (T + B,) their positions
    slots: Tensor  # (B,) the requests' places in tables that outlive a step

    def drafted(self) -> tuple[Tensor, Tensor]:
        """Return ``(T,)`` the row that predicts each drafted token, and the number of its request."""
        total = sum(self.counts)
        numbers = torch.arange(len(self.counts), device=self.ends.device)
        owners = numbers.repeat_interleave(self.ends.diff() - 1, output_size=total)
        return torch.arange(total, device=owners.device) + owners, owners

    def draft_probs(self, logits: Tensor, temperatures: Tensor) -> Tensor:
        """Return q ``(T, V)`` from a table of the drafts' logits ``(N, γ, V)`` before temperature.

        Drafts of greedy requests, whose temperature is 0, have q at a temperature of 1.
        """
        rows, owners = self.drafted()
        own = logits[self.slots[owners], rows - self.ends[owners]].float()
        temperatures = torch.where(temperatures > 0, temperatures, 1.0)
        return own.div_(temperatures[owners, None]).softmax(-1)

    def step(self, logits: Tensor, draft_probs: Tensor | None = None, **more: object) -> EngineStep:
        """Return the step to decide, given p's processed logits ``(T + B, V)``."""
        rows, _ = self.drafted()
        return EngineStep(
            tokens=self.inputs[rows + 1],
            logits=logits.float(),
            ends=self.ends[1:] - torch.arange(1, len(self.counts) + 1, device=self.ends.device),
            counts=self.counts,
            positions=self.positions[self.ends[:-1].long()].long(),
            draft_probs=draft_probs,
            **more,
        )


@dataclass(frozen=True, eq=False)
class Group:
    """Requests of one rule that all draw, or all choose greedily."""

    config: LossyConfig
    do_sample: bool
    limits: BoundLimits | None
    rows: list[int]  # the requests' numbers in the step
    index: Tensor  # (G,) these numbers on the device
    seeds: Tensor  # (G,) of the requests
    prompts: Tensor  # (G,) the lengths of their prompts
    slots: Tensor  # (G,) their places among the tables' counts


class Tables:
    """Counts of every request's text so far, by slot, on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.lossy = torch.zeros(size, dtype=torch.long, device=device)  # tokens kept lossily
        self.charged = torch.zeros(size, dtype=torch.float32, device=device)  # against a budget over the whole text

    def clear(self, slot: int) -> None:
        self.lossy[slot : slot + 1] = 0
        self.charged[slot : slot + 1] = 0


class RunningRequests:
    """Sorts requests into groups of one rule when one joins or leaves, and gives each a slot in the tables.

    ``to_device`` copies a list of numbers to the device without waiting.
    """

    def __init__(
        self, settings: EngineSettings, tables: Tables, tokenizer: Any, seed: int, to_device: Callable[[list], Any]
    ) -> None:
        self.settings = settings
        self.tables = tables
        self.tokenizer = tokenizer
        self.seed = seed
        self._to_device = to_device
        self._slots: dict[str, int] = {}
        self._ids: list[str] = []
        self._without: frozenset[int] = frozenset()
        self._sorted: tuple[list[Group], list[int]] = [], []

    def groups(
        self, ids: Sequence[str], states: Mapping[str, Any], without: frozenset[int] = frozenset()
    ) -> tuple[list[Group], list[int]]:
        """Return the groups of a batch, and the rows that have no rule.

        ``states`` has vLLM's state of each request; the rows of ``without`` are given no rule this time.
        """
        if (ids, without) != (self._ids, self._without):
            self._ids, self._without = list(ids), without
            self._sorted = self._sort(states)
        return self._sorted

    def _sort(self, states: Mapping[str, Any]) -> tuple[list[Group], list[int]]:
        for request in [request for request in self._slots if request not in states]:
            del self._slots[request]
        grouped: dict[tuple[int, bool, bool], tuple[LossyConfig, list[int]]] = {}
        others = []
        for row, request in enumerate(self._ids):
            params = states[request].sampling_params
            config = self.settings.of_request(params.extra_args)
            if config is None or row in self._without:
                others.append(row)
                continue
            if request not in self._slots:
                taken = set(self._slots.values())
                self._slots[request] = next(i for i in range(len(self.tables.lossy)) if i not in taken)
                self.tables.clear(self._slots[request])
            kind = id(config), params.temperature > 0, getattr(params, "structured_outputs", None) is not None
            grouped.setdefault(kind, (config, []))[1].append(row)
        return [self._group(config, *kind, rows, states) for (_, *kind), (config, rows) in grouped.items()], others

    def _group(
        self, config: LossyConfig, do_sample: bool, structured: bool, rows: list[int], states: Mapping[str, Any]
    ) -> Group:
        requests = [self._ids[row] for row in rows]
        return Group(
            config,
            do_sample,
            config.limits.bind(self.tokenizer, structured),
            rows,
            index=self._to_device(rows),
            seeds=self._to_device([self._seed(request, states[request], config) for request in requests]),
            prompts=self._to_device([states[request].num_prompt_tokens for request in requests]),
            slots=self._to_device([self._slots[request] for request in requests]),
        )

    def _seed(self, request: str, state: Any, config: LossyConfig) -> int:
        own = state.sampling_params.seed
        own = config.seed if own is None else own
        return seed_of(request, self.seed) if own is None else own


def decide_group(group: Group, step: EngineStep, tables: Tables) -> tuple[Tensor, Decision]:
    """Return ``(G, n + 1)`` the tokens that a group's requests keep, then :data:`NOTHING`, and the decision."""
    acceptor, n = group.config.rule, max(step.counts[row] for row in group.rows)
    starts, lengths = step.starts[group.index], step.lengths[group.index]
    columns = torch.arange(n, device=starts.device)
    flat = (starts[:, None] + columns).clamp_(max=max(0, len(step.tokens) - 1))
    tokens = step.tokens.long()[flat]
    # A grammar ends a draft at the first token that it forbids, and all after it are -1.
    allowed = ((tokens >= 0) & (columns < lengths[:, None])).long().cumprod(-1).sum(-1)
    v = Verification(
        tokens=tokens.clamp(min=0),
        do_sample=group.do_sample,
        randomness=KeyedRandomness(keys_of(group.seeds, step.positions[group.index])),
        shape=Chain(n, starts.device, allowed if n else None),
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
        ends = torch.where(decision.n_accepted == lengths, step.bonus[group.index].long(), ends)
    ends = ends.clamp(min=0)  # where nothing can be drawn, since the target's probabilities are infinite or NaN
    output = torch.cat([tokens, tokens.new_full((len(tokens), 1), NOTHING)], dim=-1)
    return output.scatter_(-1, decision.n_accepted[:, None], ends[:, None]), decision


def _answer(group: Group, step: EngineStep, flat: Tensor, starts: Tensor, needs: frozenset[str]) -> dict[str, Any]:
    """Return the target's answer to padded drafts; where the step has bonus tokens, the last logits are arbitrary."""
    more = torch.arange(flat.shape[1] + 1, device=flat.device)
    first = (step.starts + torch.arange(len(step.ends), device=flat.device))[group.index]
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
    seeds = step.ends.new_zeros(len(step.ends), dtype=torch.long).scatter(0, group.index, group.seeds)
    places = step.spread(step.positions - step.starts) + torch.arange(len(step.tokens), device=seeds.device)
    paths, mean = step.dropped(heads, KeyedRandomness(~keys_of(step.spread(seeds), places)))
    return {"dropped_logits": paths[flat].transpose(1, 2), "centroid_logits": mean[flat]}


def _lossless_positions(group: Group, step: EngineStep, v: Verification, tables: Tables) -> Any:
    if group.limits is None:
        return None
    generated = step.positions[group.index] + 1 - group.prompts
    text, prompts = v.tokens, None
    if group.limits.limits.reads_text:
        committed = step.texts(group.rows)
        ends = committed.shape[1] - generated
        prompts = committed.masked_fill(torch.arange(committed.shape[1], device=ends.device) >= ends[:, None], NOTHING)
        text = torch.cat([committed, v.tokens], dim=-1)
    return group.limits.lossless_positions(text, v.shape, generated, tables.lossy[group.slots], prompts)
