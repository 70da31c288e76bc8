"""Checks of a request's ``lossy_config`` and ``lossy_head``; everything is refused unless it is allowed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ...acceptors import REGISTRY, Acceptor, settings_of
from ...call.config import FIELDS, parse
from ...errors import LossyValueError, nearest
from ...heads.checks import brief, is_number
from .settings import FIELD, RequestLimits, Settings, above, nested

Keys = Mapping[str, "str | Keys | None"]
"""Allowed keys, each with its limit in :class:`RequestLimits`, the keys inside it, or None for no limit."""

_INTEGERS = {"k": None, "mismatches": None, "top_n": None} | {x: x for x in ("num_paths", "window", "max_draft")}
"""The integer settings of rules that a request may set. Any may cost time, so a new one needs an entry."""


def _settings(rule: type[Acceptor]) -> Keys:
    """Return a rule's settings that a request may set: numbers and choices, which can't name a folder or repository."""
    declared = (x for x in settings_of(rule) if x.choices or x.low is not None)
    return {x.name: _INTEGERS.get(x.name) for x in declared if not x.integer or x.name in _INTEGERS}


_RULES = {name: _settings(rule) for name, rule in REGISTRY.items()}
_CONFIG: Keys = {
    **{key: limit for own in _RULES.values() for key, limit in own.items()},
    **_RULES,
    **dict.fromkeys(("seed", "require_lossless", "break_even", "strict_first_n", "budget")),
    "scope": {"start": "marker_length", "end": "marker_length"},
    "tree": {"depth": "tree_depth", "top_k": "tree_top_k", "nodes": "tree_nodes"},
    "stop_drafting": dict.fromkeys(("by", "threshold", "scale", "acceptance", "step", "head")),
    # Allowed by `check_request` only if the operator allows them.
    "compile": None,
    "certificate": None,
}


def check_request(asked: GenerationConfig, own: GenerationConfig, settings: Settings) -> None:
    """Refuse keys, heads, folders and costs that the server's operator has not allowed, and settings that can't work.

    ``asked`` is the request's configuration, ``own`` the model's, whose heads, certificate and compilation are allowed.
    """
    mode, config, head = (getattr(asked, name, None) for name in FIELDS)
    mode = getattr(own, "lossy_mode", None) if mode is None else mode
    own_config = getattr(own, "lossy_config", None)
    if isinstance(config, Mapping):
        _check_keys("lossy_config", config, _CONFIG, settings.limits)
    stop_head, own_stop_head = (nested(one, "stop_drafting", "head") for one in (config, own_config))
    allowed = [*settings.allowed_heads, *_heads(getattr(own, "lossy_head", None)), *_heads(own_stop_head)]
    for name, source in {"lossy_head": head, "lossy_config.stop_drafting.head": stop_head}.items():
        for one in _heads(source):
            if one not in allowed:
                raise LossyValueError(
                    f"`{name}` of a request has to be one that this server allows, {allowed}, but is {brief(one)}"
                )
    if nested(config, "certificate") not in (None, nested(own_config, "certificate")):
        raise LossyValueError(
            "`certificate` in a request's `lossy_config` has to be this server's own, if it has one; leave it out"
        )
    if nested(config, "compile") and not (settings.allow_compile or nested(own_config, "compile")):
        raise LossyValueError("`compile` in a request's `lossy_config` is not allowed by this server; leave it out")
    if mode is None:
        if config is not None or head is not None:
            raise LossyValueError("`lossy_config` and `lossy_head` of a request need a `lossy_mode`; add one")
        return
    parse(mode, config, head)
    if getattr(own, FIELD, None) is None and asked.prompt_lookup_num_tokens is None:
        raise LossyValueError(
            f"`lossy_mode` {brief(mode)} of a request needs a drafter, and this server has none for its model; start "
            "it with `--assistant`, or leave the field out"
        )


def check_tokens(
    model: PreTrainedModel, prompt: Tensor, config: GenerationConfig, biased: Iterable[str], limits: RequestLimits
) -> None:
    """Refuse an empty or too long prompt, and tokens that the model does not have."""
    if (length := prompt.shape[-1]) == 0:
        raise LossyValueError("the prompt of a request has to have a token, but has none")
    if length > limits.prompt_tokens:
        raise LossyValueError(above("the length of the prompt", length, "prompt_tokens", limits))
    tokens = {"logit_bias": [int(token) for token in biased]}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if (given := getattr(config, name)) not in (None, getattr(model.generation_config, name)):
            tokens[name] = given if isinstance(given, list) else [given]
    size = model.config.get_text_config(decoder=True).vocab_size
    for name, ids in tokens.items():
        if ids and max(ids) >= size:
            raise LossyValueError(f"`{name}` of a request has to have tokens below {size}, but has {max(ids)}")


def _check_keys(place: str, values: Mapping[str, Any], keys: Keys, limits: RequestLimits) -> None:
    for key, value in values.items():
        where = f"`{place}.{key:.100}`"
        if key not in keys:
            raise LossyValueError(f"{where} can't be set by a request; leave it out{nearest(key, keys)}")
        inside = keys[key]
        if isinstance(inside, Mapping):
            if isinstance(value, Mapping):  # the setting's own check refuses anything else
                _check_keys(f"{place}.{key}", value, inside, limits)
        elif inside is not None:
            token = inside == "marker_length" and isinstance(value, int)
            size = len(value) if isinstance(value, str | list) else 1 if token else value
            if is_number(size) and size > getattr(limits, inside):
                raise LossyValueError(above(where, size, inside, limits))


def _heads(source: Any) -> list[Any]:
    heads = source.values() if isinstance(source, Mapping) else [source]
    return [one for one in heads if one is not None]
