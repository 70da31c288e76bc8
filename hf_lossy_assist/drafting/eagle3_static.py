"""Runs EAGLE-3 heads and MTP layers on static caches: compiled, or recorded as graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ..core.distributions import Randomness
from ..core.texts import RowShift
from ..models.static.cache_slot import StaticCacheSlot
from ..models.static.fixed_runner import FixedRunner, Prepare, TokenChoice, WholeDraft, chained
from ..models.static.forwards import DecoderForward, FixedForward, shallow
from ..models.static.graphs import weights_of
from .eagle3_drafter import Eagle3Forwards, embedded
from .state_head import StateHead
from .vocabulary import vocabulary_sizes


class StaticEagle3Forwards(FixedRunner, Eagle3Forwards):
    """Runs a head on a static cache. Its masks are whole ones, so trees need no forwards of their own."""

    def __init__(self, head: StateHead, target: PreTrainedModel, mask: Tensor | None, slot: StaticCacheSlot) -> None:
        Eagle3Forwards.__init__(self, head, target, mask)
        FixedRunner.__init__(self, head, slot)
        self._vocabulary = head.vocabulary(target)
        self._size = vocabulary_sizes(target)[0]
        self._eager = self._around(self._body(head, True))

    def _kind(self, of_tree: bool) -> Hashable:
        return self._size, self.embeddings.data_ptr(), weights_of(self.model.get_output_embeddings())

    def _body(self, model: nn.Module, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        head = shallow(model)  # of the head itself a graph would be a reference, which keeps it for ever
        return lambda *inputs, cache: (head.forward(*inputs, cache),)

    def _around(self, body: Callable[..., tuple[Tensor, ...]]) -> FixedForward:
        head = shallow(self.model)
        head.__dict__["forward"] = DecoderForward(body, self.slot.rows)
        return FixedForward(head)

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
        return self.model.logits(self._run(tokens, self._any_states(width), *self._next(width), eager=eager))

    def _trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        self.seen, self._state = 0, self._any_states(1)
        return self._drafted(draft, waits)[1]

    def _any_states(self, width: int) -> Tensor:
        return self.embeddings[:1].expand(self.slot.rows, width, -1).to(self.device, self.model.dtype).contiguous()

    def _run(self, ids: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, eager: bool = False) -> Tensor:
        (rows, count), start = ids.shape, self.seen - self._first
        width = None if eager else self._width(False, start, count)
        embeds = embedded(ids, self.embeddings, self.device).to(states.dtype)
        inputs, mask = (embeds, states, positions.expand(rows, -1)), self._whole(mask, rows, count)
        if width is not None:
            at = torch.arange(width, device=self.device).clamp(max=count - 1)
            inputs, mask = tuple(x.index_select(1, at) for x in inputs), mask.index_select(2, at)
        self._go_to(start, self.recorded and width is not None)
        self.slot.filled = start + (count if width is None else width)
        forward = self._eager if width is None else self.fixed[False, width]
        output = forward(*inputs, mask, cache=self.slot.cache).last_hidden_state
        self.seen, self.sent = self.seen + count, ids.numel()
        return output[:, :count]

    def _whole(self, mask: Tensor | None, rows: int, count: int) -> Tensor:
        """Return the mask over all slots of the cache."""
        if mask is None:
            mask = torch.ones(1, 1, count, self.seen - self._first + count, dtype=torch.bool, device=self.device)
        return pad(mask.expand(rows, -1, -1, -1), (0, self.slot.capacity - mask.shape[-1]))

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> tuple[Tensor, Tensor] | None:
        if self.chain is None or not self.slot.fits(self.seen - self._first, self.chain.length):
            return None
        drafted = self._drafted(self.chain, self._waits(text, count, randomness))
        self.sent, self.seen = self.sent + len(text) * (count - 1), self.seen + count - 1
        return tuple(x[:, :count] for x in drafted)

    def _drafted(self, draft: WholeDraft, waits: Tensor | None) -> tuple[Tensor, Tensor]:
        start, rows, count = self.seen - self._first, len(self._state), max(1, draft.length - 1)
        positions, mask = self._next(count)
        self._go_to(start, self.recorded and draft is self.chain)
        self.slot.filled = start + draft.length - 1
        return draft(
            state=self._state,
            positions=positions.expand(rows, -1).contiguous(),
            mask=self._whole(mask, rows, count).contiguous(),
            waits=waits,
            cache=self.slot.cache,
        )

    def rewind(self, length: int) -> None:
        self.seen = min(self.seen, length)
        self.slot.seek(self.seen - self._first)

    def _move_cache(self, shift: RowShift, slots: int) -> None:
        self.slot.move(shift, slots)
