"""Which models can run on static caches, and be compiled."""

from __future__ import annotations

from transformers import PreTrainedModel

from ...call.prepared import Prepared
from ...compat import attention_of, forward_accepts, supports_static_cache
from .cache_slot import new_static_cache, rewinds

_ATTENTION = ("sdpa", "eager")
_KNOWN_INPUTS = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")


def obstacle_to_static(model: PreTrainedModel) -> str | None:
    """Say why a model can't run on a static cache that is rolled back by position; None where it can."""
    name = type(model).__name__
    attention = attention_of(model)
    if attention not in _ATTENTION:
        return f"{attention!r} attention looks at empty slots of a static cache; load {name} with {_ATTENTION[0]!r}"
    if not supports_static_cache(model):
        return f"{name} does not support static caches"
    for parameter in ("position_ids", "logits_to_keep"):
        if not forward_accepts(model, parameter):
            return f"the forward of {name} takes no `{parameter}`"
    if not rewinds(cache := new_static_cache(model, 8)):
        kinds = sorted({type(layer).__name__ for layer in cache.layers})
        return f"{name} has layers that can't be rolled back by position ({', '.join(kinds)})"
    return None


def obstacle_to_inputs(call: Prepared) -> str | None:
    """Say what a call wants that has no place on the static path; None where all has one."""
    for name in ("output_hidden_states", "output_attentions"):
        if getattr(call.config, name, False):
            return f"`{name}` is wanted"
    for name, value in call.inputs.items():
        if name not in _KNOWN_INPUTS and value is not None and value is not False:
            return f"the model has the input `{name}`"
    positions = call.inputs.get("position_ids")
    return None if positions is None or positions.shape == call.ids.shape else "its positions are not one per token"


def obstacle_to_compiling(model: PreTrainedModel) -> str | None:
    """Say why a model that can run on a static cache should not be compiled; None where it can be."""
    name = type(model).__name__
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None and not quantizer.is_compileable:
        return f"the quantisation of {name} can't be compiled"
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if len(places) > 1 and places & {"cpu", "disk"}:
        return f"parts of {name} are offloaded"
    if "forward" in vars(model) or "forward" in vars(model.get_decoder()):
        return f"the forward of {name} has been replaced, as accelerate's hooks do"
    return None
