"""Draft models that share the target's tokenizer, also beside an encoder: laws, runners, and what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..compat.caches import cache_name, new_cache
from ..compat.inputs import DraftForwardInputs, ForwardInputs
from ..compat.models import (
    device_of,
    encode,
    forward_accepts,
    generation_accepts,
    has_recurrent_state,
    obstacle_in_adapter,
)
from ..compat.multimodal import PreparedInputs, other_inputs, reading
from ..compat.positions import keeps_positions, learned_positions
from ..compat.probe import ask, obstacle_to_rollback
from ..core.distributions import Randomness
from ..errors import LossyUnsupportedError, LossyValueError
from ..models.lm_head_hook import lm_head_hook
from ..models.recurrent import RecurrentDraftRunner, padding_before
from ..models.runner import DynamicCacheRunner, ModelRunner
from .chain import Source
from .vocabulary import Vocabulary, check_vocabularies

NO_END = 2**31
"""A length that no text reaches."""


class ModelSource(Source):
    """A draft model's own forwards and cache, by a ``runner`` such as :func:`draft_runner` makes.

    It calls the model directly, without a nested ``generate()``, so nothing is validated, copied or written to a
    configuration between rounds. With ``keep_hidden``, the inputs of the LM head are kept.
    """

    def __init__(self, runner: ModelRunner, vocabulary: Vocabulary | None = None, keep_hidden: bool = False) -> None:
        super().__init__(runner, vocabulary)
        self.positions = learned_positions(self.model)
        if keep_hidden:
            runner.hook = self._hook = lm_head_hook(self.model, Randomness())


def draft_runner(
    model: PreTrainedModel,
    mask: Tensor | None = None,
    max_length: int = NO_END,
    inputs: PreparedInputs | None = None,
) -> ModelRunner:
    """Return a runner on a dynamic cache of its own, or with saved states, of texts up to ``max_length``.

    ``mask`` ``(B, L)`` is that of padded prompts; ``inputs`` are those of a model that reads more than text.
    """
    model = model if inputs is None else inputs.model
    carried: dict[str, Any] = {cache_name(model): new_cache(model), "use_cache": True}
    if forward_accepts(model, "logits_to_keep"):
        carried["logits_to_keep"] = 1
    length, kind = 0, DraftForwardInputs
    if inputs is None and keeps_positions(model):
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
    direct = forward_accepts(model, "encoder_outputs")  # else the model's own preparation does
    kind = DraftForwardInputs if direct else ForwardInputs
    return DynamicCacheRunner(kind(model), carried, length, hands_on=False)


def check_draft_model(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` can draft for ``target`` in the target's tokens."""
    check_vocabularies(target, draft)
    check_decoder(draft)


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


def check_encoder_decoder_draft(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` can read the target encoder's input or output."""
    if not draft.config.is_encoder_decoder and not generation_accepts(draft, "encoder_outputs"):
        raise LossyUnsupportedError(
            f"`assistant_model` {type(draft).__name__} can't read the input of {type(target).__name__}'s encoder; use "
            "an encoder-decoder model, or a decoder that takes `encoder_outputs`, such as WhisperForCausalLM"
        )
    if (refusal := obstacle_to_rollback(draft, several=False)) is not None:
        raise LossyUnsupportedError(f"`assistant_model` has to roll its cache back, but {refusal}")


def mask_of(ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of ``ids`` ``(B, L)``: the end of the target's, which may cover a cache too."""
    mask = model_kwargs.get("attention_mask")
    return None if mask is None else mask[:, -ids.shape[1] :]
