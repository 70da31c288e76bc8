"""Runs a model over fixed numbers of tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ...compat.caches import cache_name, new_cache
from ...compat.inputs import without_loss
from ...core.distributions import Randomness
from ...core.texts import GrowingTensor, RowShift, counting, ones
from ..runner import Nodes, WholeTokens
from .cache_slot import StaticCacheSlot
from .fixed import FixedForwards, FixedRunner, FixedSampler, Prepare, WholeDraft, chained
from .forwards import states_of, whole


class StaticCacheRunner(FixedRunner):
    """Runs a text, or the rows of a batch, on a static cache that is rolled back by position.

    A batch keeps its first cache: rows that go on move to the front, and forwards keep their number of rows.
    ``carried`` holds the prompt's mask and positions, where ``generate()`` has prepared them. ``last_position``
    ``(B, 1)`` is the highest position that a batch's texts can reach: what fills shorter drafts up is clamped to it.
    Outputs return the states ``reads`` between layers as ``hidden_states``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slot: StaticCacheSlot,
        carried: Mapping[str, Any],
        seen: int = 0,
        last_position: Tensor | None = None,
        reads: tuple[int, ...] = (),
    ) -> None:
        self.model, self.seen, self.sent = model, seen, 0
        self.fixed, self.slot = FixedForwards(model, slot), slot
        self.device = self.fixed.device
        self.last_position = None if last_position is None else last_position.to(self.device)
        self.reads, self.returns_states = reads, bool(reads)
        self._cache_name = cache_name(model)
        self._more = without_loss(model)
        self.carried = {**carried, self._cache_name: slot.cache}
        self.copies_cache = False  # whether the caller gets a dynamic copy of the cache in the end
        self._eager = model if slot.rows == 1 and not reads else self.fixed.around(self.body(model, False, True))
        mask, positions = carried.get("attention_mask"), carried.get("position_ids")
        if mask is None and slot.rows > 1:  # rows will be padded
            mask = torch.ones(slot.rows, 1, dtype=torch.long)
        if positions is None:
            positions = torch.arange(1)[None] if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
        self._cover(None if mask is None else mask.to(self.device), positions.to(self.device))
        self._last: dict[tuple[int, int], Tensor] = {}

    def _cover(self, mask: Tensor | None, positions: Tensor) -> None:
        """Write mask and positions ahead for the whole cache: no padding follows the prompt."""
        self._padding = None
        if mask is not None:
            ahead = GrowingTensor(mask, ones).between(0, self.slot.capacity)
            self._padding = ahead.clone(memory_format=torch.contiguous_format)
        self._positions = GrowingTensor(positions, counting).between(0, self.slot.capacity)
        if self.last_position is not None:
            self._positions = self._positions.clamp(max=self.last_position)

    def kind(self, of_tree: bool) -> Hashable:
        return "tree" if of_tree else "none" if self._padding is None else "padding", self.reads

    def body(self, model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        return states_of(model, self.reads, decorated)

    def drafting(self, length: int, sampler: FixedSampler, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        # Only forwards are compiled, which takes a minute; a sampler's settings come and go.
        first, later = (prepare(n, partial(whole, decorated=decorated)) for n in (2, 1))

        def body(input_ids: Tensor, position_ids: Tensor, waits: Tensor | None, **inputs: Any) -> tuple[Tensor, ...]:
            # Also where the last draft was not kept whole, the token before the newest is read: so there is one shape.
            def step(i: int, token: Tensor | None, waits: Tensor | None) -> tuple[Tensor, ...]:
                run, ids, at = (later, token, slice(i + 1, i + 2)) if i else (first, input_ids, slice(0, 2))
                inputs["position_ids"] = position_ids[:, at].contiguous()
                output = run(input_ids=sampler.vocabulary.context(ids), logits_to_keep=1, return_dict=True, **inputs)
                return sampler(output.logits, waits)

            return chained(step, length, waits)

        return body

    @contextmanager
    def _without_padding(self) -> Iterator[None]:
        """What padding sees depends on the rest of the cache, and on the kernel."""
        padding = self._padding
        try:
            self._padding = None if padding is None else torch.ones_like(padding)
            yield
        finally:
            self._padding = padding

    def trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        rows, self.seen, tree = self.slot.rows, min(1, self.slot.filled), None
        with self._without_padding():
            if of_tree:
                nodes = torch.ones(rows, width, width, dtype=torch.bool, device=self.device).tril()
                tree = self._tree(1, nodes, torch.arange(1, width + 1, device=self.device).expand(rows, -1))
            tokens = torch.zeros(rows, width, dtype=torch.long, device=self.device)
            return self._forward(tokens, 1, tree, eager).logits

    def trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        tokens = torch.zeros(self.slot.rows, 2, dtype=torch.long, device=self.device)
        with self._without_padding():
            return self._drafted(draft, tokens, self._positions[:, 1 : draft.length + 2], 1, waits)[1]

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Mapping[str, Any]) -> Any:
        new = tokens[:, skip:].to(self.device)
        if tree is None:
            return self._forward(new, keep)
        width = self.seen + new.shape[1] - tree.depths.shape[1]
        return self._forward(new, keep, self._tree(width, tree.ancestors, tree.depths))

    def _tree(self, width: int, ancestors: Tensor, depths: Tensor) -> dict[str, Any]:
        """Return mask and positions of one forward over the unread text and nodes after it."""
        carried = {"attention_mask": self._padding, "position_ids": self._positions, self._cache_name: self.slot.cache}
        ancestors, depths = ancestors.to(self.device), depths.to(self.device)
        inputs = self._tree_inputs.of_tree(carried, width, self.seen, ancestors, depths)
        if self.last_position is not None:
            inputs["position_ids"] = inputs["position_ids"].clamp(max=self.last_position)
        return inputs

    def _forward(self, tokens: Tensor, keep: int, tree: dict[str, Any] | None = None, eager: bool = False) -> Any:
        start, count = self.seen, tokens.shape[1]
        # At the first position, transformers makes no mask; later it does, and forwards are prepared for that.
        width = None if eager or not start else self.fixed.width(tree is not None, start, count)
        self.seen, self.sent = start + count, tokens.numel()
        inputs = self._inputs(tokens, start, count, keep, count if width is None else width, tree)
        self.fixed.begin(start, width or count, prepared=width is not None)
        forward = self._eager if width is None else self.fixed.prepared[tree is not None, width]
        outputs = forward(**inputs, return_dict=True)
        if self.reads:
            outputs.hidden_states = tuple(x[:, :count] for x in outputs.hidden_states)
        return outputs

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> WholeTokens | None:
        width = text.shape[1]
        chain = self.chain_for(count)
        if chain is None or width < 2 or not self.slot.fits(width, chain.length - 1):
            return None
        (waits, states), new = self.fixed.waits(chain, text, count, randomness), width - self.seen
        if self.seen < width - 2:
            before = chain.sampler.vocabulary.context(text[:, self.seen : width - 2])
            self.forward(before)
        begin, end = width - 2, width - 1 + chain.length
        # Drafts after the last wanted token are thrown away, but have to have positions.
        positions = self._positions[:, begin:end].clamp(max=self._positions[:, width + count - 2 : width + count - 1])
        drafted = self._drafted(chain, text[:, begin:].to(self.device), positions, begin, waits)
        self.sent, self.seen = len(text) * (new + count - 1), width + count - 1
        return WholeTokens(*(x[:, :count] for x in drafted), states=states)

    def _drafted(
        self, draft: WholeDraft, tokens: Tensor, positions: Tensor, begin: int, waits: Tensor | None
    ) -> tuple[Tensor, ...]:
        self.fixed.begin(begin, draft.length + 1, prepared=draft in self.fixed.chains)
        return draft(
            input_ids=tokens.clone(memory_format=torch.contiguous_format),
            position_ids=positions.clone(memory_format=torch.contiguous_format),
            attention_mask=self._padding,
            waits=waits,
            use_cache=True,
            **{self._cache_name: self.slot.cache},
            **self._more,
        )

    def _keep_path(self, start: int, columns: Tensor) -> None:
        self.slot.keep_path(start, columns)

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        slots, width = shift.known(self.seen), ids.shape[1]
        self.slot.move(shift, slots)
        if self.last_position is not None:
            self.last_position = shift.of_rows(self.last_position)
        self._cover(shift.moved(self._padding[:, :width], 0), shift.moved(self._positions[:, :width], 0))
        self.seen = slots

    def rewind(self, length: int) -> None:
        self.seen = min(self.seen, length)
        self.slot.seek(self.seen)

    def settle(self, text: Tensor) -> None:
        if self.copies_cache:
            self.carried[self._cache_name] = self.slot.copied_to(new_cache(self.model))

    def _inputs(
        self, tokens: Tensor, start: int, count: int, keep: int, width: int, tree: dict[str, Any] | None
    ) -> dict[str, Any]:
        extra = width - count
        if tree is None:
            mask, positions = self._padding, self._positions[:, start : start + width]
            if extra:  # learned positions may end with the last one
                positions = positions.clamp(max=self._positions[:, start + count - 1 : start + count])
        else:
            mask, positions = tree["attention_mask"], tree["position_ids"]
            if extra:
                mask = recursively_apply(pad, mask, (0, 0, 0, extra))
                positions = torch.cat([positions, positions[:, -1:].expand(-1, extra)], dim=1)
        return {
            "input_ids": pad(tokens, (0, extra)).clone(memory_format=torch.contiguous_format),
            "position_ids": positions.clone(memory_format=torch.contiguous_format),
            "attention_mask": mask,
            self._cache_name: self.slot.cache,
            "use_cache": True,
            "logits_to_keep": self._last_of(count, keep) if extra else keep,
            **self._more,
        }

    def _last_of(self, count: int, keep: int) -> Tensor:
        if (count, keep) not in self._last:
            self._last[count, keep] = torch.arange(count - keep, count, device=self.device)
        return self._last[count, keep]
