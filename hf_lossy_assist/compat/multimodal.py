"""Images, sounds and other inputs besides a text: what a draft model reads of them, and which rows they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.generation import utils as _utils

from ..errors import LossyError, LossyUnsupportedError
from .caches import CACHE_NAMES, cache_of, text_cache
from .inputs import WITH_TOKENS
from .models import attention_of, device_of, generation_accepts, unwrap

ENCODED = "mm_encoder_outputs"
"""The name under which ``generate()`` hands on what it has encoded of images and videos."""

_ABOUT_TOKENS = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
_NO_INPUTS = {*WITH_TOKENS, "input_ids", "inputs", "inputs_embeds", "labels"}
_PLACEHOLDER = re.compile(r"(image|video|audio|speech|visual|vision)_(token|patch)_(id|index)")
_FEATURES = {"pixel_values", "cross_attention_states"}


def other_inputs(model: PreTrainedModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model reads of the inputs ``given`` to ``generate()`` besides tokens, their mask and positions.

    They are on the model's device, and floating-point numbers have its type.
    """
    device = device_of(model)
    return {
        name: value.to(device, model.dtype if value.is_floating_point() else None)
        for name, value in given.items()
        if isinstance(value, Tensor)
        and name not in _NO_INPUTS
        and not name.startswith("decoder_")
        and generation_accepts(model, name)
    }


@contextmanager
def reading(model: PreTrainedModel) -> Iterator[None]:
    """Turn errors inside the block, where a draft model reads for the first time, into one that names it."""
    try:
        yield
    except LossyError:
        raise
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise LossyUnsupportedError(
            f"`assistant_model` {type(model).__name__} can't read what the target reads ({error}); pass a draft whose "
            "images, sounds and texts are prepared as the target's, or one that reads text alone"
        ) from error


@dataclass(frozen=True, eq=False)
class PreparedInputs:
    """What a model's own ``generate()`` has prepared: the model that it runs, and its inputs besides tokens."""

    model: PreTrainedModel
    carried: Mapping[str, Any]
    length: int  # of the prompts, which mask and positions cover


def prepared_inputs(
    model: PreTrainedModel, ids: Tensor, mask: Tensor | None, others: Mapping[str, Any], copies: int
) -> PreparedInputs:
    """Let a model's own ``generate()`` prepare its inputs.

    ``ids`` ``(B, L)`` has every prompt ``copies`` times, and ``others`` are once there.
    """
    found: list[tuple[PreTrainedModel, dict[str, Any]]] = []

    def keep(inner: PreTrainedModel, input_ids: Tensor, **prepared: Any) -> Tensor:
        found.append((inner, prepared))
        return input_ids

    inner, device = unwrap(model), device_of(model)
    text = {"input_ids": ids[::copies].to(device)}
    if mask is not None:
        text["attention_mask"] = mask[::copies].to(device)
    config = GenerationConfig(
        max_new_tokens=1, num_return_sequences=copies, do_sample=copies > 1, cache_implementation="dynamic",
        pad_token_id=inner.generation_config.pad_token_id or 0,
    )  # fmt: skip
    with reading(model):
        inner.generate(**text, **others, generation_config=config, custom_generate=keep)
    inner, prepared = found[0]
    for name in (*CACHE_NAMES, "logits_processor", "stopping_criteria", "generation_config"):
        prepared.pop(name, None)
    return PreparedInputs(inner, prepared, ids.shape[1])


def placeholders(model: PreTrainedModel, inputs: Mapping[str, Any]) -> list[int]:
    """Return the tokens for which a model's forward puts in what it reads besides text; none without such inputs."""
    read = [name for name, value in inputs.items() if isinstance(value, Tensor | Mapping) and len(value)]
    if _NO_INPUTS.union(_ABOUT_TOKENS).issuperset(read):
        return []
    size = model.config.get_text_config(decoder=True).vocab_size
    return sorted({token for token in _placeholders(model.config) if 0 <= token < size})


def _placeholders(config: PretrainedConfig) -> Iterable[int]:
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield from _placeholders(value)
        elif isinstance(value, int) and _PLACEHOLDER.fullmatch(name):
            yield value


def row_of_encoded(model: PreTrainedModel, encoded: Mapping[str, Any], ids: Tensor, row: int) -> dict[str, Any]:
    """Return what belongs to one row of ``ids`` ``(B, L)`` of the images and videos of a whole batch."""
    own = {}
    for modality, output in encoded.items():
        at = ids == getattr(model.config, f"{modality}_token_id")
        if output is not None and at[row].any():
            places = at.flatten().cumsum(0).view_as(at) - 1
            own[modality] = _utils._slice_mm_encoder_output(output, places[row][at[row]])
    return own


def obstacle_to_rows(model: PreTrainedModel, inputs: Mapping[str, Any], ids: Tensor) -> str | None:
    """Say which input can't be split into the rows of ``ids`` ``(B, L)``; None where all can be.

    Inputs without a placeholder in the text have one entry a row. Others may have any number.
    """
    if model.config.is_encoder_decoder:
        return None  # what the encoder has read has one entry a row
    if inputs.get(ENCODED) and not hasattr(_utils, "_slice_mm_encoder_output"):
        return ENCODED
    known = torch.tensor(placeholders(model, inputs), device=ids.device)
    everywhere = len(known) == 0 or bool(torch.isin(ids, known).any(1).all())
    for name, value in inputs.items():
        one_each = isinstance(value, Tensor) and len(value) == len(ids) and everywhere
        if isinstance(value, Tensor | list) and name not in _NO_INPUTS.union(_ABOUT_TOKENS) and not one_each:
            return name
    return None


def reads_by_column(inputs: Mapping[str, Any]) -> bool:
    """Tell whether a model reads a piece of a sound with every token, by the token's column."""
    return "current_window" in inputs  # of Kyutai's


def obstacle_in_cross_attention(model: PreTrainedModel, inputs: Mapping[str, Any]) -> str | None:
    """Say why a forward over several tokens would hide parts of an image that one over a single token shows."""
    if not _looking_layers(model):
        return None
    masked = inputs.get("cross_attention_mask") is not None or attention_of(model) == "eager"
    if masked or not _seen(model, inputs):
        return None
    return f"{attention_of(model)!r} attention masks the image as if it were text in forwards over several tokens"


def obstacle_to_states(model: PreTrainedModel, inputs: Mapping[str, Any]) -> str | None:
    """Say why the layers of a model don't all return one state ``(B, L, d)`` of every token; None where they do."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    if getattr(config, "num_kv_shared_layers", None):
        return f"{name} runs its last layers, which share the keys of others, over the last tokens of a prompt alone"
    if any((getattr(config, several, None) or 1) > 1 for several in ("altup_num_inputs", "hc_mult")):
        return f"{name} has several states of a token between its layers"
    if _looking_layers(model) and not _seen(model, inputs):
        return f"{name} leaves out the layers that look at images where there is none"
    return None


def _looking_layers(model: PreTrainedModel) -> list[int]:
    return getattr(model.config.get_text_config(decoder=True), "cross_attention_layers", None) or []


def _seen(model: PreTrainedModel, inputs: Mapping[str, Any]) -> bool:
    """Tell whether a model sees an image: in its inputs, or in what an earlier turn has left in the cache."""
    cache = cache_of(inputs)
    layers = [] if cache is None else text_cache(cache).layers
    filled = any(layers[i].get_seq_length() for i in _looking_layers(model) if i < len(layers))
    return filled or any(inputs.get(name) is not None for name in _FEATURES)
