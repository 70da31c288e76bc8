"""A draft model with the target's tokenizer."""

from __future__ import annotations

from typing import Self

import torch
from transformers import PreTrainedModel

from ...drafting import Drafter
from ...drafting.model import ModelDrafter, check_draft_model, mask_of
from ...drafting.tree import TreeDrafter
from ...drafting.unverified import UNVERIFIED_DRAFTERS
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
        shared = {"vocabulary": vocabulary_of(self.asked.target, self.model)}
        if making.config.tree is not None:
            shared |= {"keep_hidden": "draft_hidden" in making.config.rule.needs, "runner": making.runner}
            return TreeDrafter(
                self.model, making.config.tree.depth, shape=making.config.tree, **making.settings | shared
            )
        shared["inputs"] = making.call.draft_inputs
        if (rule := making.config.rule.unverified_drafting) is not None:
            return UNVERIFIED_DRAFTERS[rule.head.config.position](self.model, rule.head, **making.settings | shared)
        return ModelDrafter(self.model, runner=making.runner, **making.chains | shared)

    def static(self, making: Making) -> StaticDraft:
        call, draft = making.call, self.model
        obstacle = obstacle_to_static(draft) or (obstacle_to_filling(draft) if call.batch > 1 else None)
        if draft.get_input_embeddings() is self.asked.target.get_input_embeddings():
            obstacle = "the draft is a part of the target, and new in every call"
        inputs = {"attention_mask": mask_of(call.ids, call.inputs)}
        last = None if call.batch == 1 else torch.tensor([[call.config.max_length - 1]])

        def runner(slot: StaticCacheSlot) -> StaticCacheRunner:
            return StaticCacheRunner(draft, slot, inputs, last_position=last)

        # After a draft that was kept whole, a round's first forward is over two tokens; all others are over one.
        own = vocabulary_of(self.asked.target, draft)
        return StaticDraft(runner, steps=(1, 2), vocabulary=own, obstacle=obstacle)
