"""Models: what is inside their wrappers, where they are, what they can."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel

from ..errors import LossyValueError

DECODING_METHODS = ("_sample", "_assisted_decoding")
"""The methods of `GenerationMixin` that `generate()` ends in for one sequence per prompt."""

# The second is the older one.
_PREPARE_ENCODER = next(
    name
    for name in ("_maybe_prepare_encoder_kwargs_for_generation", "_prepare_encoder_decoder_kwargs_for_generation")
    if hasattr(GenerationMixin, name)
)


def supports_static_cache(model: PreTrainedModel) -> bool:
    """Tell whether the model's class says that it can be compiled with a static cache."""
    return model._can_compile_fullgraph


def attention_of(model: PreTrainedModel) -> str:
    """Return the name of the model's attention implementation."""
    return model.config._attn_implementation


def with_attention_of(model: PreTrainedModel, config: PretrainedConfig) -> PretrainedConfig:
    """Return ``config``, told to use the model's attention implementation."""
    config._attn_implementation = attention_of(model)
    return config


def has_recurrent_state(model: PreTrainedModel) -> bool:
    """Tell whether the model keeps a state that can't be rolled back, be it in a kind of cache of its own."""
    return model._is_stateful or not model._supports_default_dynamic_cache()


def origin_of(model: nn.Module) -> tuple[str, str | None]:
    """Return what the model was loaded from, a Hub id or a folder or nothing, and the commit if it is known."""
    return getattr(model.config, "_name_or_path", ""), getattr(model.config, "_commit_hash", None)


def pre_hooks_of(module: nn.Module) -> dict[int, Any]:
    """Return what runs before the module's forward, by number: who takes one out needs no handle of it."""
    return module._forward_pre_hooks


def is_offloaded(module: nn.Module) -> bool:
    """Tell whether accelerate brings the module's weights only for a forward."""
    return hasattr(module, "_hf_hook")


def compiles_by_itself(model: PreTrainedModel, model_kwargs: dict[str, Any], config: GenerationConfig) -> bool:
    """Tell whether plain ``generate()`` would compile the model's forward."""
    return model._valid_auto_compile_criteria(model_kwargs, config)


def unwrap(model: Any) -> PreTrainedModel:
    """Return the transformers model inside a pipeline, and PEFT's and ``torch.compile``'s wrappers."""
    inner = model if isinstance(model, nn.Module) else getattr(model, "model", model)
    inner = getattr(inner, "_orig_mod", inner)
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    if not isinstance(inner, GenerationMixin):
        raise LossyValueError(
            f"`model` has to be a transformers model that can generate, but is a {type(model).__name__}"
        )
    return inner


def refusal_of_adapter(model: nn.Module) -> str | None:
    """Say why an adapter of PEFT can't be used: it puts virtual tokens or a learned cache before what is read."""
    # Seen from inside, its wrapper is the owner of a method that it gives the model while it generates.
    wrapper = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", model)
    if not getattr(getattr(wrapper, "active_peft_config", None), "is_prompt_learning", False):
        return None
    return (
        "an adapter of PEFT that learns prompts, whose virtual tokens are in no text; use one that changes weights, "
        "e.g. LoRA"
    )


def replaces_decoding(model: PreTrainedModel) -> bool:
    """Tell whether the model's class has a decoding loop of its own instead of transformers'."""
    return any(
        getattr(type(model), name) is not getattr(GenerationMixin, name)
        for name in DECODING_METHODS
        if hasattr(GenerationMixin, name)
    )


def forward_accepts(model: PreTrainedModel, name: str) -> bool:
    """Tell whether the ``forward`` of the model, inside all wrappers, has a parameter called ``name``."""
    forward = unwrap(model).forward
    return name in _parameters(getattr(forward, "__func__", forward))


@functools.lru_cache(256)
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def device_of(model: PreTrainedModel) -> torch.device:
    """Return where a model's inputs belong, also where its weights are kept elsewhere and loaded on demand."""
    if model.device.type != "meta":
        return model.device
    place = getattr(getattr(unwrap(model), "_hf_hook", None), "execution_device", None)
    return torch.device("cpu" if place is None else place)


def unfinished(model: PreTrainedModel, done: bool, synced: bool, device: torch.device) -> bool:
    """Tell whether there is a text to go on with: here or, where processes keep in step, anywhere."""
    return model._has_unfinished_sequences(done, synced, device=device)


def idle_forward(model: PreTrainedModel, ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
    """Run the model over one token, for nothing."""
    if model.config.is_encoder_decoder:
        model(decoder_input_ids=ids[:, -1:], encoder_outputs=model_kwargs["encoder_outputs"], use_cache=False)
    else:
        model(input_ids=ids[:, -1:], use_cache=False)


def encode(model: PreTrainedModel, inputs: Any, mask: Any) -> Any:
    """Return what a model's encoder says of its input."""
    given = {} if mask is None else {"attention_mask": mask.to(device_of(model))}
    name = model.get_encoder().main_input_name
    prepare = getattr(model, _PREPARE_ENCODER)
    return prepare(inputs.to(device_of(model)), given, name, model.generation_config)["encoder_outputs"]
