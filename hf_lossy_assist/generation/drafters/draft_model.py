"""A draft model with the target's tokenizer: its laws, its runner, and what is asked of it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...compat.caches import cache_name, new_cache
from ...compat.inputs import DraftForwardInputs, ForwardInputs
from ...compat.models import device_of, forward_accepts, has_recurrent_state, obstacle_in_adapter
from ...compat.multimodal import PreparedInputs
from ...compat.positions import counts_otherwise, learned_positions
from ...compat.probe import ask, obstacle_to_rollback
from ...core.distributions import Randomness
from ...drafting import Drafter
from ...drafting.chain import Source
from ...drafting.run_ahead import RUNS_AHEAD
from ...drafting.vocabulary import SAME, Vocabulary, check_vocabularies, vocabulary_of
from ...errors import LossyUnsupportedError
from ...models.lm_head_hook import lm_head_hook
from ...models.recurrent import RecurrentDraftRunner, padding_before
from ...models.runner import DynamicCacheRunner, ModelRunner
from ...models.static.cache_slot import StaticCacheSlot
from ...models.static.runner import StaticCacheRunner
from .. import obstacles
from .base import Asked, Kind, Making, StaticDraft, register

NO_END = 2**31
"""A length that no text reaches."""


class ModelSource(Source):
    """A draft model's own forwards and cache, by a ``runner`` such as :func:`draft_runner` makes.

    It calls the model directly, without a nested ``generate()``, so nothing is validated, copied or written to a
    configuration between rounds. With ``keep_hidden``, the inputs of the LM head are kept.
    """

    def __init__(self, runner: ModelRunner, vocabulary: Vocabulary = SAME, keep_hidden: bool = False) -> None:
        super().__init__(runner, vocabulary)
        self.positions = learned_positions(self.model)
        if keep_hidden:
            runner.hook = self._hook = lm_head_hook(self.model, Randomness())


def draft_runner(
    model: PreTrainedModel, mask: Tensor | None = None, max_length: int = NO_END, inputs: PreparedInputs | None = None
) -> ModelRunner:
    """Return a runner on a dynamic cache of its own, or with saved states, of texts up to ``max_length``.

    ``mask`` ``(B, L)`` is that of padded prompts; ``inputs`` are those of a model that reads more than text.
    """
    model = model if inputs is None else inputs.model
    carried: dict[str, Any] = {cache_name(model): new_cache(model), "use_cache": True}
    if forward_accepts(model, "logits_to_keep"):
        carried["logits_to_keep"] = 1
    length, kind = 0, DraftForwardInputs
    if inputs is None and counts_otherwise(model):
        length, carried["position_ids"] = 1, torch.zeros(1, 1, dtype=torch.long, device=device_of(model))
    if inputs is not None:
        carried |= inputs.carried
        length, kind = inputs.length, ForwardInputs
    elif mask is not None and not bool(mask.all()):  # else models would ask in every forward
        mask = mask.to(device_of(model))
        length = mask.shape[1]
        carried["attention_mask"] = mask
        if forward_accepts(model, "position_ids"):
            carried["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    hands_on = inputs is not None  # such as what has been encoded of an image
    if has_recurrent_state(model):
        return RecurrentDraftRunner(
            ForwardInputs(model), carried, length, padding=padding_before(mask), hands_on=hands_on,
            several=ask(model).several,
        )  # fmt: skip
    # Only what fills shorter drafts up counts further.
    positions = carried.get("position_ids", torch.tensor([[length - 1]]))
    last = positions[..., -1:] + (min(max_length, NO_END) - length)  # a caller's may be larger than any tensor holds
    return DynamicCacheRunner(kind(model), carried, length, last_position=last, hands_on=hands_on)


def check_decoder(draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` is a decoder that reads text alone, with a cache that can be rolled back."""
    if (refusal := obstacle_in_adapter(draft)) is not None:
        raise LossyUnsupportedError(f"`assistant_model` has {refusal}")
    if draft.config.is_encoder_decoder:
        raise LossyUnsupportedError(
            f"`assistant_model` has to be a decoder-only model, but is a {type(draft).__name__}"
        )
    if (refusal := obstacle_to_rollback(draft, several=False)) is not None:
        raise LossyUnsupportedError(
            f"`assistant_model` has to be a model whose cache can be rolled back, but {refusal}"
        )


@register
class DraftModel(Kind):
    """`assistant_model` is a decoder that drafts in the target's tokens."""

    gives = frozenset({"q", "hidden", "unverified", "tree", "stop", "static", "certificate"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        decoder = asked.draft is not None and not asked.target.config.is_encoder_decoder
        return cls(asked) if decoder and asked.tokenizers is None else None

    @cached_property
    def cached(self) -> tuple[PreTrainedModel, ...]:
        return (self.model,)

    def check(self) -> None:
        check_vocabularies(self.asked.target, self.model)
        check_decoder(self.model)

    def make(self, making: Making) -> Drafter:
        call, tree, rule = making.call, self.asked.config.tree, self.asked.config.rule.unverified_drafting
        runner = making.runner or draft_runner(
            self.model, call.mask, call.config.max_length, call.draft_inputs if tree is None else None
        )
        runner.chunk = call.config.prefill_chunk_size
        own = vocabulary_of(self.asked.target, self.model)
        source = ModelSource(runner, own, self.asked.keep_hidden or rule is not None)
        if rule is not None:
            return RUNS_AHEAD[rule.head.config.position](source, rule.head, making.sampler())
        return self.drafter(making, source)

    def static(self, making: Making) -> StaticDraft:
        call, draft = making.call, self.model
        obstacle = obstacles.to_static(draft) or (obstacles.to_filling(draft) if call.batch > 1 else None)
        last = None if call.batch == 1 else torch.tensor([[call.config.max_length - 1]])

        def runner(slot: StaticCacheSlot) -> StaticCacheRunner:
            return StaticCacheRunner(draft, slot, {"attention_mask": call.mask}, last_position=last)

        # After a draft that was kept whole, a round's first forward is over two tokens; all others are over one.
        own = vocabulary_of(self.asked.target, draft)
        return StaticDraft(runner, steps=(1, 2), vocabulary=own, obstacle=obstacle)
