"""What goes into the target's forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import candidate_generator as _candidates

if TYPE_CHECKING:
    from ..rows import Move

_IN_LINE_WITH_IDS = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")


def padding_token(config: GenerationConfig) -> int:
    """Return the token that fills rows up in a prepared call; any, where the model has none."""
    token = getattr(config, "_pad_token_tensor", None)
    return 0 if token is None else int(token)


def prepare_candidate_inputs(
    model: PreTrainedModel,
    candidate_ids: torch.LongTensor,
    model_kwargs: dict[str, Any],
    drafted: int,
    new_tokens: int | None,
    first: bool,
    pending: int = 0,
) -> dict[str, Any]:
    """Return the inputs of one target forward over ``drafted`` tokens and the committed ones before them.

    ``new_tokens`` is the number of tokens to send, None for all; logits are asked for at the last
    ``drafted + 1`` positions. ``pending`` committed tokens came after ``model_kwargs`` were prepared.
    """
    kwargs = dict(model_kwargs)
    longer = drafted + pending
    with_encoder = model.config.is_encoder_decoder
    prefix = "decoder_" if with_encoder else ""
    if (mask := kwargs.get(f"{prefix}attention_mask")) is not None:
        kwargs = _candidates._prepare_attention_mask(kwargs, mask.shape[1] + longer, with_encoder)
    if (types := kwargs.get("token_type_ids")) is not None:
        kwargs = _candidates._prepare_token_type_ids(kwargs, types.shape[1] + longer)
    if (types := kwargs.get("mm_token_type_ids")) is not None:
        kwargs["mm_token_type_ids"] = nn.functional.pad(types, (0, longer))  # all text
    if (positions := kwargs.get(f"{prefix}position_ids")) is not None:
        kwargs = _candidates._prepare_position_ids(kwargs, positions.shape[-1] + longer, with_encoder)
    inputs = model.prepare_inputs_for_generation(
        candidate_ids, next_sequence_length=new_tokens, is_first_iteration=first, **kwargs
    )
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = drafted + 1
    return inputs


def unseen_tokens(input_ids: torch.LongTensor, model_kwargs: dict[str, Any], config: GenerationConfig) -> int | None:
    """Return how many of ``input_ids`` a cache passed in by the user lacks; None where all are to be sent."""
    past = int(model_kwargs["past_key_values"].get_seq_length())
    if not past:
        return None
    mask = model_kwargs.get("attention_mask")
    covered = mask.shape[1] if mask is not None else getattr(config, "_mask_length", input_ids.shape[1])
    # A mask longer than the ids says that the ids are only what is new.
    return input_ids.shape[1] - past if covered == input_ids.shape[1] else None


def advance_inputs(
    model: PreTrainedModel, outputs: Any, model_kwargs: dict[str, Any], committed: int
) -> dict[str, Any]:
    """Return the model's inputs after ``committed`` more tokens: longer mask and positions, newest cache."""
    return model._update_model_kwargs_for_generation(
        outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder, num_new_tokens=committed
    )


def move_inputs(model_kwargs: dict[str, Any], move: Move, ids: torch.Tensor) -> None:
    """Let inputs that stand in line with ``ids`` ``(B, S)`` follow the rows of a batch."""
    for name in _IN_LINE_WITH_IDS:
        if (values := model_kwargs.get(name)) is not None:
            model_kwargs[name] = move.take(values, 0)
    if model_kwargs.get("attention_mask") is None and len(set(move.ends)) > 1:
        model_kwargs["attention_mask"] = move.take(torch.ones_like(ids), 0)
