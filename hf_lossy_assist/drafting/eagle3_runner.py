"""Runs EAGLE-3 heads and MTP layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ..core.distributions import Randomness
from ..core.messages import Commit
from ..core.texts import RowShift
from ..core.transfers import to_device
from ..models.runner import Nodes
from ..models.static.cache_slot import StaticCacheSlot
from ..models.static.fixed import FixedSampler, Prepare, WholeDraft, chained
from ..models.static.forwards import shallow
from ..models.static.graphs import weights_of
from .eagle3 import Eagle3
from .head_runner import HeadRunner
from .mtp import Mtp
from .state_head import embedded
from .vocabulary import vocabulary_sizes


class Eagle3Runner(HeadRunner):
    """Runs such a head for a target. Its slot t holds the target's state at token t and the token after it."""

    ahead = 1

    def __init__(
        self, head: Eagle3 | Mtp, target: PreTrainedModel, mask: Tensor | None, slot: StaticCacheSlot | None = None
    ) -> None:
        super().__init__(head, target, mask, slot)
        self._state: Tensor | None = None
        self._nodes: Tensor | None = None
        (self._size,) = vocabulary_sizes(target)

    def _read(self, commit: Commit, g: Tensor) -> None:
        before, longest = self.seen, max(commit.counts)
        ids = commit.ids[:, before + 1 : commit.start + longest]
        counts = to_device(commit.counts, ids.device)[:, None]
        over = torch.arange(before + 1 - commit.start, longest, device=ids.device) >= counts
        # Beyond the end of shorter rows, anything will do.
        output = self._over(ids.masked_fill(over, 0), g, *self._next(ids.shape[1]))
        last = (counts + commit.start - 2 - before).clamp(min=0).to(output.device)
        self._state = output.gather(1, last[..., None].expand(-1, -1, output.shape[-1]))

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Any) -> CausalLMOutput:
        if tree is not None:  # which takes the outputs at its parents
            self._nodes = self._over_nodes(tokens, tree)
            return CausalLMOutput(logits=self.model.logits(self._nodes))
        if tokens.shape[1]:  # the first drafted token needs no forward: its state has been read
            self._state = self._over(tokens, self._state, *self._next(tokens.shape[1]))
        return CausalLMOutput(logits=self.model.logits(self._state))

    def _over_nodes(self, tokens: Tensor, tree: Nodes) -> Tensor:
        rows, k, slots = tree.ancestors.shape
        before, read = self._state if slots == k else self._nodes, self.seen - (slots - k)
        device = before.device
        if self._mask is None:
            newest, text = torch.full((rows, 1), read, device=device), torch.ones(1, read - self._first, device=device)
        else:
            there = self._covering(read + 1)[:, self._first :]
            newest, text = there.sum(-1, keepdim=True) - 1, there[:, :-1]
        sees = torch.cat([text.bool()[:, None].expand(rows, k, -1), tree.ancestors.to(device)], dim=-1)
        states = before[torch.arange(rows, device=device)[:, None], tree.parents.to(device)]
        return self._over(tokens, states, newest + tree.depths[:, -k:].to(device) - 1, sees[:, None])

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        super()._move(shift, ids)
        self._state = self._state.index_select(0, shift.index.to(self._state.device))

    def _next(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return positions and mask of the next ``count`` slots."""
        positions, there = self._places(count)
        slots = torch.arange(self._first, self.seen + count, device=self.device)
        queries = slots[-count:, None]
        if there is not None:
            # Padding sees itself, since attention over nothing gives NaN.
            return positions, ((slots <= queries) & there[:, None] | (slots == queries))[:, None]
        return positions, (slots <= queries)[None, None] if count > 1 else None

    def _over(self, ids: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, eager: bool = False) -> Tensor:
        """Run the head over the next slots; ``ids`` ``(B, n)`` are the tokens after those of the slots."""
        embeds = embedded(ids, self.embeddings, self.device).to(states.dtype)
        mask = self.fixed.whole(mask, *ids.shape, self._start)
        output = self.fixed.run(False, self._start, (embeds, states, positions), mask, eager=eager)
        self.seen, self.sent = self.seen + ids.shape[1], ids.numel()
        return output

    def kind(self, of_tree: bool) -> Hashable:
        return self._size, self.embeddings.data_ptr(), weights_of(self.model.get_output_embeddings())

    @staticmethod
    def body(model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        head = shallow(model)
        return lambda *inputs, cache: (head.forward(*inputs, cache),)

    def drafting(self, length: int, sampler: FixedSampler, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        head, embeddings = shallow(self.model), self.embeddings
        read, scored = prepare("read", lambda _: head.forward), prepare("scored", lambda _: head.logits)
        vocabulary, device = self.vocabulary, self.device

        def body(state: Tensor, positions: Tensor, mask: Tensor, waits: Tensor | None, cache: Any) -> Any:
            def step(i: int, token: Tensor | None, waits: Tensor | None) -> tuple[Tensor, Tensor]:
                nonlocal state
                if i:  # the first token follows from a state that has been read
                    embeds, at = embedded(token, embeddings, device), slice(i - 1, i)
                    state = read(embeds, state, positions[:, at].contiguous(), mask[:, :, at].contiguous(), cache)
                return sampler(vocabulary.logits(scored(state).float()), waits)

            return chained(step, length, waits)

        return body

    def trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        self.seen = 0
        tokens = torch.zeros(self.fixed.slot.rows, width, dtype=torch.long, device=self.device)
        return self.model.logits(self._over(tokens, self._anything(width), *self._next(width), eager=eager))

    def trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        self.seen, self._state = 0, self._anything(1)
        return self._drafted(draft, waits)[1]

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> tuple[Tensor, Tensor] | None:
        chain = self.fixed.chain
        if chain is None or not self.fixed.slot.fits(self._start, chain.length):
            return None
        drafted = self._drafted(chain, self.fixed.waits(text, count, randomness))
        self.sent, self.seen = self.sent + len(text) * (count - 1), self.seen + count - 1
        return tuple(x[:, :count] for x in drafted)

    def _drafted(self, draft: WholeDraft, waits: Tensor | None) -> tuple[Tensor, Tensor]:
        rows, count = len(self._state), max(1, draft.length - 1)
        positions, mask = self._next(count)
        self.fixed.begin(self._start, draft.length - 1, prepared=draft is self.fixed.chain)
        return draft(
            state=self._state,
            positions=positions.expand(rows, -1).contiguous(),
            mask=self.fixed.whole(mask, rows, count, self._start),
            waits=waits,
            cache=self.fixed.slot.cache,
        )
