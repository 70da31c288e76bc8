"""Runs EAGLE-3 heads and MTP layers on static caches: compiled, or recorded as graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..core.distributions import Randomness
from ..models.static.cache_slot import StaticCacheSlot
from ..models.static.fixed_runner import Prepare, TokenChoice, WholeDraft, chained
from ..models.static.forwards import shallow
from ..models.static.graphs import weights_of
from .eagle3 import Eagle3
from .eagle3_drafter import Eagle3Forwards
from .mtp import Mtp
from .state_head import embedded
from .state_static import StaticStateForwards
from .vocabulary import vocabulary_sizes


class StaticEagle3Forwards(StaticStateForwards, Eagle3Forwards):
    """Runs an EAGLE-3 head or an MTP layer on a static cache."""

    def __init__(self, head: Eagle3 | Mtp, target: PreTrainedModel, mask: Tensor | None, slot: StaticCacheSlot) -> None:
        super().__init__(head, target, mask, slot)
        (self._size,) = vocabulary_sizes(target)

    def _kind(self, of_tree: bool) -> Hashable:
        return self._size, self.embeddings.data_ptr(), weights_of(self.model.get_output_embeddings())

    def _body(self, model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        head = shallow(model)
        return lambda *inputs, cache: (head.forward(*inputs, cache),)

    def _drafting(self, length: int, choice: TokenChoice, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        head, embeddings = shallow(self.model), self.embeddings
        read, scored = prepare("read", lambda _: head.forward), prepare("scored", lambda _: head.logits)
        vocabulary, device = self._vocabulary, self.device

        def body(state: Tensor, positions: Tensor, mask: Tensor, waits: Tensor | None, cache: Any) -> Any:
            def step(i: int, token: Tensor | None, waits: Tensor | None) -> tuple[Tensor, Tensor]:
                nonlocal state
                if i:  # the first token follows from a state that has been read
                    embeds, at = embedded(token, embeddings, device), slice(i - 1, i)
                    state = read(embeds, state, positions[:, at].contiguous(), mask[:, :, at].contiguous(), cache)
                return choice(vocabulary.logits(scored(state).float()), waits)

            return chained(step, length, waits)

        return body

    def _trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        self.seen = 0
        tokens = torch.zeros(self.slot.rows, width, dtype=torch.long, device=self.device)
        return self.model.logits(self._read_slots(tokens, self._anything(width), *self._next(width), eager=eager))

    def _trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        self.seen, self._state = 0, self._anything(1)
        return self._drafted(draft, waits)[1]

    def _read_slots(
        self, ids: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, eager: bool = False
    ) -> Tensor:
        embeds = embedded(ids, self.embeddings, self.device).to(states.dtype)
        mask = self._whole(mask, *ids.shape)
        self.sent = ids.numel()
        return self._send(False, (embeds, states, positions), mask, eager=eager)

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> tuple[Tensor, Tensor] | None:
        if self.chain is None or not self.slot.fits(self.seen - self._first, self.chain.length):
            return None
        drafted = self._drafted(self.chain, self._waits(text, count, randomness))
        self.sent, self.seen = self.sent + len(text) * (count - 1), self.seen + count - 1
        return tuple(x[:, :count] for x in drafted)

    def _drafted(self, draft: WholeDraft, waits: Tensor | None) -> tuple[Tensor, Tensor]:
        rows, count = len(self._state), max(1, draft.length - 1)
        positions, mask = self._next(count)
        self._go_to_draft(draft, draft.length - 1)
        return draft(
            state=self._state,
            positions=positions.expand(rows, -1).contiguous(),
            mask=self._whole(mask, rows, count).contiguous(),
            waits=waits,
            cache=self.slot.cache,
        )
