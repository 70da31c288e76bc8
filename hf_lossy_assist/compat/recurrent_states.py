"""Whether a model goes on from a cache that was rolled back, and snapshots of caches that have to be restored."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from .caches import CACHE, cache_name, new_cache, text_cache, tokens_in
from .inputs import ForwardInputs
from .models import device_of, forward_accepts, has_own_attention, has_recurrent_state, is_bidirectional

_KEYS = ("keys", "values")
_STATES = ("conv_states", "recurrent_states")
_READ, _MORE = 10, 3
# Tolerances in single and half precision for sums in another order.
_FINE, _COARSE = 1e-3, 0.15


class CacheSnapshot:
    """The content of a cache at one time, which can be restored any number of times.

    Growing keys and values are cropped; everything else is copied, since forwards write to it.
    """

    def __init__(self, cache: Cache) -> None:
        self._layers = [_held_by(layer) for layer in cache.layers]
        self._lengths = [_length(layer) for layer in cache.layers]

    def restore(self, cache: Cache) -> None:
        del cache.layers[len(self._layers) :]
        for layer, held, length in zip(cache.layers, self._layers, self._lengths, strict=True):
            vars(layer).update(_copied(held))
            if length is not None:
                for name in _KEYS:
                    setattr(layer, name, getattr(layer, name)[..., :length, :])


def _length(layer: Any) -> int | None:
    """Return how many keys a layer that keeps all of them holds; None for other and empty layers."""
    grows = isinstance(layer, DynamicLayer) and not layer.is_sliding
    return layer.keys.shape[-2] if grows and layer.keys is not None and layer.keys.numel() else None


def _held_by(layer: Any) -> dict[str, Any]:
    cropped = _KEYS if _length(layer) is not None else ()
    return _copied({name: value for name, value in vars(layer).items() if name not in cropped})


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return value


@dataclass(frozen=True)
class Resumability:
    """Whether a model goes on correctly from a cache that holds its text."""

    one: bool  # with one token per forward
    several: bool  # with several tokens in one forward


@dataclass
class _Encoded(BaseModelOutput):
    """An encoder's states, with the other field that decoders with experts look at."""

    router_logits: Any = None


_continuations: weakref.WeakKeyDictionary[PreTrainedModel, Resumability] = weakref.WeakKeyDictionary()


def continuation_of(model: PreTrainedModel) -> Resumability:
    """Find out once how a model goes on from a copy of its cache, by ten forwards over a few tokens.

    Some models ignore their state in a forward over several tokens: their results do not depend on it. Others keep a
    part of it outside the cache: their results differ when repeated. Some have no cache at all, or read one token at a
    time.
    """
    if model not in _continuations:
        try:
            _continuations[model] = _ask(model)
        except Exception:  # a model that goes on in no way may fail in any way
            _continuations[model] = Resumability(one=False, several=False)
    return _continuations[model]


@torch.no_grad()
def _ask(model: PreTrainedModel) -> Resumability:
    size, end = model.config.get_text_config(decoder=True).vocab_size, _READ + _MORE
    ids = (torch.arange(1, end + 1, device=device_of(model)) * 37 % size)[None]
    inputs, whole, encoder = ForwardInputs(model), new_cache(model), {}
    cache = text_cache(whole)
    if model.config.is_encoder_decoder:
        width = getattr(model.get_encoder(), "config", model.config).hidden_size
        encoder["encoder_outputs"] = _Encoded(torch.ones(1, 1, width, dtype=model.dtype, device=ids.device))

    def logits(start: int, end: int) -> Tensor:
        carried = {cache_name(model): whole, "use_cache": True, **encoder}
        if not encoder:
            carried["attention_mask"] = torch.ones_like(ids[:, :end])
        if forward_accepts(model, "position_ids"):
            carried["position_ids"] = torch.arange(end, device=ids.device)[None]
        given = inputs.of_text(ids[:, :end], carried, start, 0, end - start, first=not start)
        return model(**given, return_dict=True).logits[0, -(end - start) :]

    def one_by_one() -> Tensor:
        return torch.cat([logits(i, i + 1) for i in range(_READ, end)])

    def together(without: str | None = None) -> Tensor:
        snapshot.restore(cache)
        for layer in cache.layers:
            for state in getattr(layer, without or "", {}).values():
                if state is not None:
                    state.zero_()
        return logits(_READ, end)

    logits(0, _READ)
    kept = has_recurrent_state(model) or tokens_in({CACHE: cache}) == _READ
    snapshot = CacheSnapshot(cache)
    kinds = [kind for kind in _STATES if any(_filled(layer, kind) for layer in cache.layers)]
    reference = one_by_one()  # as in plain decoding
    try:
        several = together()
        reads_all = not any(torch.equal(together(without=kind), several) for kind in kinds)
    except Exception:  # models without support fail in any way
        several, reads_all = None, False
    snapshot.restore(cache)
    return Resumability(kept and _same(one_by_one(), reference), reads_all and _same(several, reference))


def _filled(layer: Any, kind: str) -> bool:
    return any(state is not None for state in getattr(layer, kind, {}).values())


def _same(logits: Tensor, reference: Tensor) -> bool:
    # The median, since rounding can change the choice of experts at one position.
    error = (logits - reference).float().norm(dim=-1) / reference.float().norm(dim=-1).clamp(min=1e-6)
    return error.median().item() < (_FINE if reference.dtype in (torch.float32, torch.float64) else _COARSE)


def obstacle_to_rollback(model: PreTrainedModel, several: bool) -> str | None:
    """Say why a model can't go on from a cache that was rolled back, or a state that was restored; None if it can.

    ``several`` requires that it then read several tokens in one forward, as a target does. Models whose attention is
    transformers' own are not asked.
    """
    if is_bidirectional(model):
        return (
            f"{type(model).__name__} lets tokens attend to later ones, as `is_decoder` of its configuration is False; "
            "load it with `is_decoder=True`"
        )
    if not has_recurrent_state(model):
        if not has_own_attention(model):
            return None
        goes_on = continuation_of(model)
        if not (goes_on.one or several):
            return f"{type(model).__name__} keeps no cache that holds just its text"
        return None if goes_on.several else f"{type(model).__name__} can read only one token behind its cache"
    if not model._supports_default_dynamic_cache():
        return f"{type(model).__name__} keeps its state outside transformers' caches, where it can't be restored"
    kept = f"{type(model).__name__} keeps a recurrent state"
    goes_on = continuation_of(model)
    if not goes_on.one:
        return f"{kept}, which can't be restored from its cache alone"
    if several and not goes_on.several:
        return f"{kept}, and can't resume from it in a forward over several tokens"
    return None
