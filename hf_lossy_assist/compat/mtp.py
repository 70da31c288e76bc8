"""A decoder of one layer, built from a target's own class around the weights of its multi-token prediction."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .models import FULL

_EMBEDDINGS = "embed_tokens.weight"


def mtp_layers(model: PreTrainedModel) -> int:
    """Return how many MTP layers a model has for transformers' own MTP; the others' are in their checkpoints only."""
    return getattr(model.config.get_text_config(decoder=True), "num_mtp_layers", None) or 0


def several_or_sliding_mtp(model: PreTrainedModel) -> bool:
    """Tell whether a model has several MTP layers, or one with a window, which are left to transformers' own MTP."""
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "mtp_layer_types", None) or ())
    return mtp_layers(model) > 1 or bool(kinds - {FULL})


def one_layer_decoder(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> tuple[PreTrainedModel, list[str]]:
    """Return a decoder like the model's with one layer of full attention, and the names of weights that do not fit.

    ``weights`` go by the decoder's own names in a checkpoint, ``layers.0.….weight`` and ``norm.weight``. transformers
    converts them as it does the model's.
    """
    decoder = model.get_decoder()
    config, sparse = copy.deepcopy(decoder.config), any(".experts." in name for name in weights)
    size = config.vocab_size
    values = {
        "num_hidden_layers": 1,
        "layer_types": [FULL],
        # Whether the layer has experts, in the words of several families.
        "mlp_layer_types": ["sparse" if sparse else "dense"],
        "first_k_dense_replace": int(not sparse),
        "mlp_only_layers": [] if sparse else [0],
        "decoder_sparse_step": 1,
        # The target's embeddings are read, so none are allocated here.
        "vocab_size": 1,
        "pad_token_id": None,
    }
    vars(config).pop("quantization_config", None)  # it says how the target was quantised, not these weights
    for name, value in values.items():
        if hasattr(config, name):
            setattr(config, name, value)
    own, found = type(decoder).from_pretrained(
        None,
        config=config,
        state_dict={**weights, _EMBEDDINGS: torch.zeros(1, config.hidden_size)},
        dtype=model.dtype,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    own.config.vocab_size = size
    wrong = (
        f"{name} ({kind.removesuffix('_keys')})" for kind in found if kind.endswith("_keys") for name in found[kind]
    )
    return own, sorted(wrong)
