"""Says why a model, or a call, can't run on static caches, be recorded or be compiled."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import PreTrainedModel

from ..compat import models
from ..compat.inputs import TEXT_INPUTS, WHOLE_OUTPUTS
from ..compat.positions import switches_of
from ..compat.probe import ask
from ..models.quantised import can_be_compiled, dtype_of, is_prepacked
from ..models.static.cache_slot import new_static_cache, rewinds
from ..models.static.forwards import has_replaced_forward, path_to_decoder
from ..models.static.graphs import RECORDERS
from .prepared import Prepared


def to_static(model: PreTrainedModel) -> str | None:
    """Say why a model can't run on a static cache; None where it can."""
    name = type(model).__name__
    attention = models.attention_of(model)
    if attention not in models.MASKED_ATTENTION:
        return f"{attention!r} attention looks at empty slots of a static cache; load {name} with 'sdpa'"
    if not models.supports_static_cache(model):
        return f"{name} does not support static caches"
    if not ask(model).at_first:
        return f"{name} has to read a prompt without a draft behind it"
    for parameter in ("position_ids", "logits_to_keep"):
        if not models.forward_accepts(model, parameter):
            return f"the forward of {name} takes no `{parameter}`"
    if not rewinds(cache := new_static_cache(model, 8)):
        return f"{name} has layers that can't be rolled back by position ({kinds_of(cache)})"
    return None


def kinds_of(cache: Any) -> str:
    """Return the names of a cache's kinds of layers."""
    return ", ".join(sorted({type(layer).__name__ for layer in cache.layers}))


def to_filling(model: PreTrainedModel) -> str | None:
    """Say why the decoder's inputs can't be filled up where rows have ended; None where they can."""
    name = type(model).__name__
    if path_to_decoder(model) is None:
        return f"the decoder of {name} is no module of its own, so its inputs can't be filled up"
    if has_replaced_forward(model):
        return f"the forward of {name} has been replaced, as accelerate's hooks do, so rows that have ended stay in it"
    return None


def to_inputs(call: Prepared) -> str | None:
    """Say which option or input of a call static caches do not support; None if they support all."""
    for name in WHOLE_OUTPUTS:
        if getattr(call.config, name, False):
            return f"`{name}` is set"
    for name, value in call.inputs.items():
        if name not in TEXT_INPUTS and value is not None and value is not False:
            return f"the model has the input `{name}`"
    positions = call.inputs.get("position_ids")
    return None if positions is None or positions.shape == call.ids.shape else "its positions are not one per token"


UNRECORDABLE: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()
"""Models whose recording failed; another try would fail, too."""


def to_recording(model: PreTrainedModel, call: Prepared) -> str | None:
    """Say why graphs of a model can't be recorded; None where they can. What runs in Python is not in a graph."""
    name = type(model).__name__
    device = models.device_of(model).type
    if device not in RECORDERS or len({*getattr(model, "hf_device_map", {}).values()}) > 1:
        return f"graphs can't be recorded where {name} is"
    if model in UNRECORDABLE:
        return f"recording {name} failed before"
    if torch.is_autocast_enabled(device):
        return "autocast makes copies of the weights, which end with it"
    if call.synced_gpus or models.is_sharded(model):
        return f"{name} is spread over processes"
    decoder, head = model.get_decoder() or model, model.get_output_embeddings()
    inside = [x for x in decoder.modules() if not isinstance(x, PreTrainedModel) and x not in (decoder, head)]
    if any(map(models.has_hooks, inside)):
        return f"hooks watch layers of {name}, and would not be called"
    if any(hasattr(x, "active_adapters") for x in inside):
        return f"{name} has adapters, which may change"
    if switches_of(model):
        return f"the frequencies of {name} depend on the text's length"
    return None


def to_compiling(model: PreTrainedModel) -> str | None:
    """Say why a model on a static cache can't be compiled; None where it can."""
    name = type(model).__name__
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None and not quantizer.is_compileable:
        return f"the quantisation of {name} can't be compiled"
    if not can_be_compiled(model):
        return f"the kernels that {name} was quantised to {dtype_of(model)} for can't be compiled"
    if is_prepacked(model):
        return f"{name} is prepacked, which does as much for it on a CPU"
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if len(places) > 1 and places & {"cpu", "disk"}:
        return f"parts of {name} are offloaded"
    if has_replaced_forward(model) or "forward" in vars(model.get_decoder()):
        return f"the forward of {name} has been replaced, as accelerate's hooks do"
    return None
