"""Says which models can run on static caches, and be compiled."""

from __future__ import annotations

from transformers import PreTrainedModel

from ... import compat
from ..prepacked import is_prepacked
from ..prepared import Prepared
from ..quantised import dtype_of
from .cache_slot import new_static_cache, rewinds


def obstacle_to_static(model: PreTrainedModel) -> str | None:
    """Say why a model can't run on a static cache; None where it can."""
    name = type(model).__name__
    attention = compat.attention_of(model)
    if attention not in compat.MASKED_ATTENTION:
        return f"{attention!r} attention looks at empty slots of a static cache; load {name} with 'sdpa'"
    if not compat.supports_static_cache(model):
        return f"{name} does not support static caches"
    for parameter in ("position_ids", "logits_to_keep"):
        if not compat.forward_accepts(model, parameter):
            return f"the forward of {name} takes no `{parameter}`"
    if not rewinds(cache := new_static_cache(model, 8)):
        kinds = sorted({type(layer).__name__ for layer in cache.layers})
        return f"{name} has layers that can't be rolled back by position ({', '.join(kinds)})"
    return None


def obstacle_to_inputs(call: Prepared) -> str | None:
    """Say which option or input of a call static caches do not support; None if they support all."""
    for name in compat.WHOLE_OUTPUTS:
        if getattr(call.config, name, False):
            return f"`{name}` is set"
    for name, value in call.inputs.items():
        if name not in compat.TEXT_INPUTS and value is not None and value is not False:
            return f"the model has the input `{name}`"
    positions = call.inputs.get("position_ids")
    return None if positions is None or positions.shape == call.ids.shape else "its positions are not one per token"


def obstacle_to_compiling(model: PreTrainedModel) -> str | None:
    """Say why a model on a static cache can't be compiled; None where it can."""
    name = type(model).__name__
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None and not quantizer.is_compileable:
        return f"the quantisation of {name} can't be compiled"
    if (rounded := dtype_of(model)) is not None:
        return f"the kernels that {name} was quantised to {rounded} for can't be compiled"
    if is_prepacked(model):
        return f"{name} is prepacked, which does as much for it on a CPU"
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if len(places) > 1 and places & {"cpu", "disk"}:
        return f"parts of {name} are offloaded"
    if "forward" in vars(model) or "forward" in vars(model.get_decoder()):
        return f"the forward of {name} has been replaced, as accelerate's hooks do"
    return None
