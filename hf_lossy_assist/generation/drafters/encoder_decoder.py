"""A draft model for a target with an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ...compat.caches import cache_name
from ...compat.inputs import DraftForwardInputs, ForwardInputs
from ...compat.models import device_of, encode, forward_accepts, generation_accepts
from ...compat.multimodal import other_inputs, reading
from ...compat.probe import obstacle_to_rollback
from ...drafting import Drafter
from ...drafting.vocabulary import check_vocabularies, vocabulary_of
from ...errors import LossyUnsupportedError, LossyValueError
from ...models.runner import DynamicCacheRunner, ModelRunner
from .base import Asked, Kind, Making, register
from .draft_model import ModelSource


def encoded_runner(model: PreTrainedModel, ids: Tensor, inputs: Mapping[str, Any], encoder_input: Any) -> ModelRunner:
    """Return the runner of a decoder that attends to an encoder's states: its own's, or the target's where it has none.

    It is for one sequence, whose prompt is ``ids`` ``(1, L)``; ``inputs`` are the target's other inputs, and
    ``encoder_input`` is its encoder's, if the caller gave it. Distil-Whisper's decoder, loaded as a
    ``WhisperForCausalLM``, shares the target's encoder.
    """
    mask, device, length = inputs.get("attention_mask"), device_of(model), 0  # it masks the encoder's input
    if not model.config.is_encoder_decoder:
        states = inputs["encoder_outputs"][0].to(device=device, dtype=model.dtype)
        given = inputs.get("decoder_attention_mask")
        text = (torch.ones_like(ids) if given is None else given).to(device)
        encoded = {"encoder_outputs": BaseModelOutput(states), "attention_mask": text}
        length = text.shape[1]
    elif encoder_input is None:
        raise LossyValueError(
            "`encoder_outputs` are the target's, but `assistant_model` has an encoder of its own; pass the "
            "encoder's input instead"
        )
    else:
        encoded = other_inputs(model, inputs)  # with whatever its encoder reads beside the main input
        if mask is not None:
            encoded["attention_mask"] = mask.to(device)
        with reading(model):
            encoded["encoder_outputs"] = encode(model, encoder_input, encoded)
    carried = {cache_name(model): EncoderDecoderCache(DynamicCache(), DynamicCache()), "use_cache": True, **encoded}
    # Where the forward itself takes no states, the model's own preparation does.
    kind = DraftForwardInputs if forward_accepts(model, "encoder_outputs") else ForwardInputs
    return DynamicCacheRunner(kind(model), carried, length, hands_on=False)


@register
class EncoderDecoder(Kind):
    """`assistant_model` reads the input, or the states, of the target's encoder."""

    gives = frozenset({"q", "hidden", "stop"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        encoded = asked.draft is not None and asked.target.config.is_encoder_decoder
        return cls(asked) if encoded and asked.tokenizers is None else None

    def check(self) -> None:
        target, draft = self.asked.target, self.model
        check_vocabularies(target, draft)
        if not draft.config.is_encoder_decoder and not generation_accepts(draft, "encoder_outputs"):
            raise LossyUnsupportedError(
                f"`assistant_model` {type(draft).__name__} can't read the input of {type(target).__name__}'s encoder; "
                "use an encoder-decoder model, or a decoder that takes `encoder_outputs`, such as WhisperForCausalLM"
            )
        if (refusal := obstacle_to_rollback(draft, several=False)) is not None:
            raise LossyUnsupportedError(f"`assistant_model` has to roll its cache back, but {refusal}")

    def make(self, making: Making) -> Drafter:
        row = making.call  # an encoder's target decodes rows one by one
        runner = encoded_runner(self.model, row.ids, row.inputs, row.encoder_input)
        runner.chunk = row.config.prefill_chunk_size
        own = vocabulary_of(self.asked.target, self.model)
        return self.drafter(making, ModelSource(runner, own, self.asked.keep_hidden))
