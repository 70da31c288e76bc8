"""Recurrent states: what a cache holds besides keys and values, and whether a model goes on from a copy of it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from .caches import cache_name, new_cache
from .inputs import ForwardInputs
from .models import device_of, forward_accepts, has_recurrent_state

_KEYS = ("keys", "values")
_STATES = ("conv_states", "recurrent_states")
_READ, _MORE = 10, 3
# How far logits may be from their reference in single and in half precision, by another order of sums alone.
_FINE, _COARSE = 1e-3, 0.15


class CacheSnapshot:
    """What a cache held at one time, to which it can be brought back any number of times.

    Keys and values that grow are cropped; everything else is copied, since forwards write to it.

    Parameters
    ----------
    cache
        The cache.
    """

    def __init__(self, cache: Cache) -> None:
        self._layers = [_held_by(layer) for layer in cache.layers]
        self._lengths = [_length(layer) for layer in cache.layers]

    def restore(self, cache: Cache) -> None:
        """Let ``cache`` hold again what it held."""
        del cache.layers[len(self._layers) :]
        for layer, held, length in zip(cache.layers, self._layers, self._lengths, strict=True):
            vars(layer).update(_copied(held))
            if length is not None:
                for name in _KEYS:
                    setattr(layer, name, getattr(layer, name)[..., :length, :])


def _length(layer: Any) -> int | None:
    """Return how many tokens' keys a layer that lets go of none holds; None for other layers, and empty ones."""
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
class GoingOn:
    """How a model goes on from a copy of its state.

    Attributes
    ----------
    one
        Whether it does with one token after another.
    several
        Whether it does with several tokens in one forward.
    """

    one: bool
    several: bool


_continuations: weakref.WeakKeyDictionary[PreTrainedModel, GoingOn] = weakref.WeakKeyDictionary()


def continuation_of(model: PreTrainedModel) -> GoingOn:
    """Find out how a model goes on from a copy of its state, once, by ten forwards over a few tokens.

    Some models pass over their state when more than one token comes: then it makes no difference what the state is.
    Some keep a part of it where no cache holds it: then what follows differs from what followed at first.
    """
    if model not in _continuations:
        _continuations[model] = _ask(model)
    return _continuations[model]


@torch.no_grad()
def _ask(model: PreTrainedModel) -> GoingOn:
    size, end = model.config.get_text_config(decoder=True).vocab_size, _READ + _MORE
    ids = (torch.arange(1, end + 1, device=device_of(model)) * 37 % size)[None]
    inputs, cache = ForwardInputs(model), new_cache(model)

    def logits(start: int, end: int) -> Tensor:
        carried = {cache_name(model): cache, "use_cache": True, "attention_mask": torch.ones_like(ids[:, :end])}
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
    snapshot = CacheSnapshot(cache)
    kinds = [kind for kind in _STATES if any(_filled(layer, kind) for layer in cache.layers)]
    reference = one_by_one()  # as plain decoding goes on
    try:
        several = together()
        reads_all = not any(torch.equal(together(without=kind), several) for kind in kinds)
    except Exception:  # whatever the code of models that can't do it runs into
        several, reads_all = None, False
    snapshot.restore(cache)
    return GoingOn(_same(one_by_one(), reference), reads_all and _same(several, reference))


def _filled(layer: Any, kind: str) -> bool:
    return any(state is not None for state in getattr(layer, kind, {}).values())


def _same(logits: Tensor, reference: Tensor) -> bool:
    # The middle position: where experts are chosen, rounding alone can change one position by much.
    error = (logits - reference).float().norm(dim=-1) / reference.float().norm(dim=-1).clamp(min=1e-6)
    return error.median().item() < (_FINE if reference.dtype in (torch.float32, torch.float64) else _COARSE)


def refusal_to_go_on(model: PreTrainedModel, several: bool) -> str | None:
    """Say why a model that keeps a recurrent state can't be brought back to an earlier one; None where it can.

    Parameters
    ----------
    model
        The model.
    several
        Whether it has to read several tokens in one forward then, as a target does.
    """
    if not has_recurrent_state(model):
        return None
    if not model._supports_default_dynamic_cache():
        return f"{type(model).__name__} keeps a state that is in no cache of transformers, and can't be brought back"
    kept = f"{type(model).__name__} keeps a recurrent state"
    goes_on = continuation_of(model)
    if not goes_on.one:
        return f"{kept}, which can't be brought back by its cache alone"
    if several and not goes_on.several:
        return f"{kept}, from which it can't go on in a forward over several tokens"
    return None
