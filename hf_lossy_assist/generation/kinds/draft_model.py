"""A draft model with the target's tokenizer."""

from __future__ import annotations

from typing import Self

import torch
from transformers import PreTrainedModel

from ...drafting import Drafter
from ...drafting.model import ModelSource, check_draft_model, draft_runner
from ...drafting.run_ahead import RUNS_AHEAD
from ...drafting.tree import TreeDrafter
from ...drafting.vocabulary import vocabulary_of
from ...models.static.cache_slot import StaticCacheSlot
from ...models.static.runner import StaticCacheRunner
from ..static_obstacles import obstacle_to_filling, obstacle_to_static
from .base import Asked, Kind, Making, StaticDraft, register


@register
class DraftModel(Kind):
    """`assistant_model` is a decoder that drafts in the target's tokens."""

    gives = frozenset({"q", "hidden", "unverified", "tree", "stop", "static", "certificate"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        decoder = asked.draft is not None and not asked.target.config.is_encoder_decoder
        return cls(asked) if decoder and asked.tokenizers is None else None

    @property
    def cached(self) -> tuple[PreTrainedModel, ...]:
        return (self.model,)

    def check(self) -> None:
        check_draft_model(self.asked.target, self.model)

    def longest(self, constant: int | None) -> int | None:
        return constant

    def make(self, making: Making) -> Drafter:
        call, tree, rule = making.call, making.config.tree, making.config.rule.unverified_drafting
        runner = making.runner or draft_runner(
            self.model, making.mask, call.config.max_length, call.draft_inputs if tree is None else None
        )
        runner.chunk = call.config.prefill_chunk_size
        own = vocabulary_of(self.asked.target, self.model)
        source = ModelSource(runner, own, making.keep_hidden or rule is not None)
        if tree is not None:
            return TreeDrafter(source, tree, making.sampler())
        if rule is not None:
            return RUNS_AHEAD[rule.head.config.position](source, rule.head, making.sampler())
        return making.chain(source)

    def static(self, making: Making) -> StaticDraft:
        call, draft = making.call, self.model
        obstacle = obstacle_to_static(draft) or (obstacle_to_filling(draft) if call.batch > 1 else None)
        inputs = {"attention_mask": making.mask}
        last = None if call.batch == 1 else torch.tensor([[call.config.max_length - 1]])

        def runner(slot: StaticCacheSlot) -> StaticCacheRunner:
            return StaticCacheRunner(draft, slot, inputs, last_position=last)

        # After a draft that was kept whole, a round's first forward is over two tokens; all others are over one.
        own = vocabulary_of(self.asked.target, draft)
        return StaticDraft(runner, steps=(1, 2), vocabulary=own, obstacle=obstacle)
