"""Lets a model's first layers draft for it."""

from __future__ import annotations

import copy
from collections import OrderedDict

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from ..compat import counts_tokens, has_recurrent_state
from ..errors import LossyUnsupportedError, LossyValueError
from ..models.static.forwards import shallow

_OF_THE_ORIGINAL = ("forward", "_old_forward", "_hf_hook")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


def first_layers(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return a view of ``model`` that ends after its first ``layers``, with the same weights, norm and head.

    Drafts of models trained for early exits, such as LayerSkip's, are best. Raises where the layers can't be found, or
    their states can't be rolled back.
    """
    refused = f"`assistant_early_exit` {layers!r} can't be used with {type(model).__name__}, "
    if has_recurrent_state(model):
        raise LossyUnsupportedError(f"{refused}whose recurrent state can't be rolled back; pass an `assistant_model`")
    base = model.base_model
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 < layers < total:
        raise LossyValueError(
            f"`assistant_early_exit` has to be an int > 0 and < {total}, the target's layers, but is {layers!r}"
        )
    name = next((n for n, x in base.named_children() if isinstance(x, nn.ModuleList) and len(x) == total), None)
    if base is model or name is None:
        raise LossyUnsupportedError(
            f"{refused}whose base model does not hold its layers in one list; pass an `assistant_model`"
        )
    # The base keeps its own configuration, because some divide by the number of all layers.
    draft_base, draft = _view(base), _view(model)
    draft.config = _with_caches_of(base.config, layers)
    draft_base._modules[name] = nn.ModuleList(list(base._modules[name])[:layers])
    draft._modules[model.base_model_prefix] = draft_base
    if not counts_tokens(draft):
        raise LossyUnsupportedError(
            f"{refused}because none of the first {layers} layers attends to the text, so their cache does not know its "
            "length; raise it, or pass an `assistant_model`"
        )
    return draft


def _with_caches_of(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """Return a configuration whose cache is that of the first layers."""
    config = copy.deepcopy(config)
    # The last layers may share the keys of earlier ones instead of caching their own.
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    config.num_hidden_layers = min(layers, config.num_hidden_layers - shared)
    if shared:
        config.num_kv_shared_layers = 0
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    return config


def _view(module: nn.Module) -> nn.Module:
    """Return a copy that can be given other children, without the original's hooks."""
    view = shallow(module)
    for name in _OF_THE_ORIGINAL:
        view.__dict__.pop(name, None)
    for name in _HOOKS:
        setattr(view, name, OrderedDict())
    return view
