"""What stands around transformers' ``generate()``: models with one of their own, pipelines, continuous batching."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from transformers import GenerationConfig, GenerationMixin

MERGE = "_prepare_generation_config"
"""The method of `GenerationMixin` that adds its defaults to a call's configuration."""

CONTINUOUS_BATCHING = ("generate_batch", "init_continuous_batching")
"""The methods of `GenerationMixin` that decode by continuous batching."""


def owner_of(name: str, kind: type = GenerationMixin) -> type | None:
    """Return the class from which a class has a method; None where it has none of this name."""
    return next((parent for parent in kind.__mro__ if name in vars(parent)), None)


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
    kinds = type(model).__mro__[: type(model).__mro__.index(GenerationMixin)]
    functions = [f for kind in kinds for f in vars(kind).values() if inspect.isfunction(f)]
    return any("generate" in vars(kind) for kind in kinds) and not any(map(_calls_inherited_generate, functions))


def generating_parts(model: GenerationMixin) -> list[str]:
    """Return the names of the models inside a model that can generate."""
    return [name for name, part in model.named_children() if isinstance(part, GenerationMixin)]


def _calls_inherited_generate(function: Callable[..., Any]) -> bool:
    code = inspect.unwrap(function).__code__
    inherited = "__class__" in code.co_freevars or GenerationMixin.__name__ in code.co_names
    return inherited and "generate" in code.co_names
