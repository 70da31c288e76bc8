"""Models: their wrappers, devices, abilities and processes; what stands around their ``generate()``; versions.

Around transformers' ``generate()`` are models with one of their own, pipelines, and continuous batching.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import GenerationMode

from ..errors import LossyValueError
from .kernels import FOLDED

MERGE = "_prepare_generation_config"
"""The method of `GenerationMixin` that adds its defaults to a call's configuration."""

CONTINUOUS_BATCHING = ("generate_batch", "init_continuous_batching")
"""The methods of `GenerationMixin` that decode by continuous batching."""

DECODING_METHODS = ("_sample", "_assisted_decoding")
"""The decoding loops of `GenerationMixin` for one sequence per prompt."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers: attention to the whole text, and to its end."""

MASKED_ATTENTION = ("sdpa", "eager", FOLDED)
"""Implementations of attention that accept any mask."""


@contextmanager
def load_errors(argument: str, source: str) -> Iterator[None]:
    """Turn errors of ``from_pretrained`` inside the block into one that names the argument."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if source.startswith(("/", ".", "~")) and not Path(source).is_dir():
            reason = "there is no such folder"
        elif "backend tokenizer" in reason:  # a list of ways to read one follows
            reason = "it has no tokenizer; write one there by `tokenizer.save_pretrained(…)`"
        raise LossyValueError(
            f"{argument} has to be a causal language model in a folder or on the Hub, but is {source!r}: {reason}"
        ) from error


def supports_static_cache(model: PreTrainedModel) -> bool:
    return model._can_compile_fullgraph


def attention_of(model: PreTrainedModel) -> str:
    return model.config._attn_implementation


def layer_kinds(model: PreTrainedModel) -> list[str]:
    """Return each layer's kind of attention, by the configuration's or transformers' own names."""
    config = model.config.get_text_config(decoder=True)
    if (kinds := getattr(config, "layer_types", None)) is not None:
        return list(kinds)
    chunked = getattr(config, "attention_chunk_size", None) is not None
    kind = FULL if getattr(config, "sliding_window", None) is None else SLIDING
    return ["chunked_attention" if chunked else kind] * config.num_hidden_layers


def has_recurrent_state(model: PreTrainedModel) -> bool:
    """Tell whether the model keeps a state that can't be rolled back, possibly in its own kind of cache."""
    # Some models that see images don't say what their language model does.
    inner = model.get_decoder() if hasattr(model, "get_decoder") else model
    stateful = model._is_stateful or getattr(inner, "_is_stateful", False)
    return stateful or not model._supports_default_dynamic_cache()


def origin_of(model: nn.Module) -> tuple[str, str | None]:
    """Return the Hub id or folder that the model was loaded from, or "", and the commit if known."""
    return getattr(model.config, "_name_or_path", ""), getattr(model.config, "_commit_hash", None)


def compiles_by_itself(model: PreTrainedModel, model_kwargs: dict[str, Any], config: GenerationConfig) -> bool:
    return model._valid_auto_compile_criteria(model_kwargs, config)


def innermost(model: Any) -> Any:
    """Return the model inside a pipeline and inside PEFT's and ``torch.compile``'s wrappers."""
    inner = model if isinstance(model, nn.Module) else getattr(model, "model", model)
    inner = getattr(inner, "_orig_mod", inner)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def unwrap(model: Any, argument: str = "model") -> PreTrainedModel:
    """Return the generating transformers model inside a pipeline and wrappers; ``argument`` is what names it."""
    inner = innermost(model)
    if not isinstance(inner, GenerationMixin):
        given = type(model).__name__ + ("; pass its `target`" if hasattr(model, "target") else "")
        raise LossyValueError(f"`{argument}` has to be a transformers model that can generate, but is a {given}")
    return inner


def obstacle_in_adapter(model: nn.Module) -> str | None:
    """Say why a PEFT adapter is unsupported (it adds virtual tokens or a learned cache); None if it is supported."""
    # While generating, the wrapper owns a method of the model inside.
    wrapper = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", model)
    if not getattr(getattr(wrapper, "active_peft_config", None), "is_prompt_learning", False):
        return None
    return (
        "an adapter of PEFT that learns prompts, whose virtual tokens are in no text; use one that changes weights, "
        "e.g. LoRA"
    )


def has_adapters_by_row(model: nn.Module) -> bool:
    """Tell whether PEFT gives each row of a running call an adapter of its own, by ``adapter_names``."""
    modules = model.modules() if hasattr(model, "peft_config") else ()
    hooks = chain.from_iterable(module._forward_pre_hooks.values() for module in modules)
    return any(getattr(hook, "keywords", {}).get("adapter_names") for hook in hooks)


def owner_of(name: str) -> type:
    """Return the class from which `GenerationMixin` has a method."""
    return next(kind for kind in GenerationMixin.__mro__ if name in vars(kind))


def merged_by_own_generate(model: GenerationMixin) -> bool:
    """Tell whether the caller of this function's caller is a ``generate()`` of the model's own.

    Whisper's and others merge configurations before they call transformers' one.
    """
    frame = sys._getframe(2)
    while frame.f_code.co_name == MERGE:  # overridden
        frame = frame.f_back
    code = inspect.unwrap(GenerationMixin.generate).__code__
    return frame.f_code.co_name == "generate" and frame.f_code is not code and frame.f_locals.get("self") is model


def without_defaults(config: GenerationConfig, own: GenerationConfig) -> Any:
    """Return a call's configuration without the values that transformers has filled in; some pipelines let it do so.

    ``own`` is the model's.
    """
    defaults = _default_fields()
    if any(getattr(config, name, None) is None for name in defaults):
        return config
    said = {k: v for k, v in vars(config).items() if v != defaults.get(k) or getattr(own, k, None) is not None}
    return SimpleNamespace(**said)


@functools.cache
def _default_fields() -> dict[str, Any]:
    return {k: v for k, v in GenerationConfig()._get_default_generation_params().items() if v is not None}


def decodes_elsewhere(model: GenerationMixin) -> bool:
    """Tell whether the model's own ``generate()`` never calls transformers' one for this model."""
    if not replaces(model, "generate"):
        return False
    kinds = type(model).__mro__[: type(model).__mro__.index(GenerationMixin)]
    functions = [f for kind in kinds for f in vars(kind).values() if inspect.isfunction(f)]
    return not any(map(_calls_inherited_generate, functions))


def generating_parts(model: GenerationMixin) -> list[str]:
    """Return the names of the models inside a model that can generate."""
    return [name for name, part in model.named_children() if isinstance(part, GenerationMixin)]


def _calls_inherited_generate(function: Callable[..., Any]) -> bool:
    code = inspect.unwrap(function).__code__
    inherited = "__class__" in code.co_freevars or GenerationMixin.__name__ in code.co_names
    return inherited and "generate" in code.co_names


def replaces_decoding(model: PreTrainedModel) -> bool:
    """Tell whether the model's class overrides transformers' decoding loop, or says that its own takes no drafts."""
    supported = getattr(model, "_supported_generation_modes", None)
    if supported is not None and GenerationMode.ASSISTED_GENERATION not in supported:
        return True
    return replaces(model, *DECODING_METHODS)


def replaces(model: GenerationMixin, *names: str) -> bool:
    """Tell whether a model's class has methods of its own in place of `GenerationMixin`'s.

    Other threads may wrap the mixin's methods meanwhile, so these are not compared.
    """
    kinds = type(model).__mro__[: type(model).__mro__.index(GenerationMixin)]
    return not {*names}.isdisjoint(chain.from_iterable(map(vars, kinds)))


def forward_accepts(model: PreTrainedModel, name: str) -> bool:
    """Tell whether the unwrapped model's ``forward`` has a parameter called ``name``."""
    # What wraps it may hold the model, and would stay remembered with it.
    forward = inspect.unwrap((model if isinstance(model, PreTrainedModel) else unwrap(model)).forward)
    return name in _parameters(getattr(forward, "__func__", forward))


def generation_accepts(model: PreTrainedModel, name: str) -> bool:
    """Tell whether ``generate()`` can pass ``name`` to the forward, directly or through prepared inputs."""
    prepare = inspect.unwrap(unwrap(model).prepare_inputs_for_generation)
    return forward_accepts(model, name) or name in _parameters(getattr(prepare, "__func__", prepare))


@functools.lru_cache(256)
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def has_hooks(module: nn.Module) -> bool:
    """Tell whether hooks watch a module's own forwards; those by which transformers collects states don't count."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)


def device_of(model: PreTrainedModel) -> torch.device:
    """Return the device of a model's inputs, even if its weights are offloaded."""
    if model.device.type != "meta":
        return model.device
    place = getattr(getattr(unwrap(model), "_hf_hook", None), "execution_device", None)
    return torch.device("cpu" if place is None else place)


def any_unfinished(model: PreTrainedModel, done: bool, device: torch.device) -> bool:
    """Tell whether a text is unfinished here or in another of the synchronised processes."""
    return model._has_unfinished_sequences(done, True, device=device)


def idle_forward(model: PreTrainedModel, ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
    """Run a dummy forward over one token, to stay in step with other processes."""
    if model.config.is_encoder_decoder:
        model(decoder_input_ids=ids[:, -1:], encoder_outputs=model_kwargs["encoder_outputs"], use_cache=False)
    else:
        model(input_ids=ids[:, -1:], use_cache=False)


def encode(model: PreTrainedModel, inputs: torch.Tensor, others: Mapping[str, Any]) -> Any:
    """Return the output of a model's encoder for its main input and ``others``."""
    name = getattr(model.get_encoder(), "main_input_name", model.main_input_name)
    inputs = inputs.to(device_of(model), model.dtype if inputs.is_floating_point() else None)
    prepare = model._maybe_prepare_encoder_kwargs_for_generation
    return prepare(inputs, dict(others), name, model.generation_config)["encoder_outputs"]


def is_sharded(model: PreTrainedModel) -> bool:
    """Tell whether this process holds only a part of the model's weights."""
    return (getattr(model, "_tp_size", None) or 1) > 1


def shared_seed(model: PreTrainedModel, seed: int | None) -> int | None:
    """Return a run's seed: processes that share a model have to draw alike, even without one."""
    if seed is not None or not is_sharded(model) or not dist.is_initialized():
        return seed
    mesh = getattr(model, "_device_mesh", None)
    names = () if mesh is None else mesh.mesh_dim_names or ()
    shared = torch.randint(2**52, (1,)).to(device_of(model))
    dist.broadcast(shared, group=mesh["tp"].get_group() if "tp" in names else None, group_src=0)
    return int(shared)


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages, by their names."""
    return {name: metadata.version(name) for name in packages}
