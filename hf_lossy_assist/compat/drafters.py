"""transformers' own drafters, and what it has of the layers with which models draft for themselves."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import candidate_generator as _candidates
from transformers.generation.candidate_generator import CandidateGenerator

from .models import FULL

# The second reports a distribution but does not draw from it.
DRAFTERS_WITHOUT_LOGITS = (
    _candidates.PromptLookupCandidateGenerator,
    _candidates.SinglePositionMultiTokenCandidateGenerator,
)

# The interceptors of a model's drafter by thread. One patched attribute serves all threads until the last one leaves.
_intercepts: weakref.WeakKeyDictionary[PreTrainedModel, dict[int, list[Callable[..., CandidateGenerator]]]] = (
    weakref.WeakKeyDictionary()
)
_intercepts_lock = threading.Lock()


def transformers_drafter(model: PreTrainedModel, **call: Any) -> CandidateGenerator:
    """Return the drafter that transformers' assisted generation would build for a call."""
    return model._get_candidate_generator(**call)


def drafts_from_target_states(assistant: PreTrainedModel | None) -> bool:
    """Tell whether a draft model reads the target's keys and values instead of its own."""
    return type(assistant).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))


def obstacle_to_shared_keys(target: PreTrainedModel, assistant: PreTrainedModel) -> str | None:
    """Say why an assistant can't read a target's keys; None where it can."""
    width, own = assistant.config.backbone_hidden_size, target.config.get_text_config(decoder=True).hidden_size
    if not type(target).__name__.startswith(("Gemma4", "Gemma3n")):
        return f"which reads the keys of Gemma 4, but the target is a {type(target).__name__}"
    return None if width == own else f"which reads states of {width} units, but the target's have {own}"


@contextmanager
def intercepted_drafter(model: PreTrainedModel, intercept: Callable[..., CandidateGenerator]) -> Iterator[None]:
    """Inside the block, call ``intercept(build, **kwargs)`` whenever assisted generation needs a drafter.

    ``build(**kwargs)`` returns transformers' own choice. Other threads are not affected.
    """
    thread = threading.get_ident()
    with _intercepts_lock:
        by_thread = _intercepts.setdefault(model, {})
        if not by_thread:
            build_own = model._get_candidate_generator

            def choose(**kwargs: Any) -> CandidateGenerator:
                stack = by_thread.get(threading.get_ident())
                return stack[-1](build_own, **kwargs) if stack else build_own(**kwargs)

            model._get_candidate_generator = choose
        by_thread.setdefault(thread, []).append(intercept)
    try:
        yield
    finally:
        with _intercepts_lock:
            by_thread[thread].remove(intercept)
            if not by_thread[thread]:
                del by_thread[thread]
            if not by_thread:
                del model._get_candidate_generator


def mtp_layers(model: PreTrainedModel) -> int:
    """Return how many MTP layers a model has for transformers' own MTP; the others' are in their checkpoints only."""
    return getattr(model.config.get_text_config(decoder=True), "num_mtp_layers", None) or 0


def several_or_sliding_mtp(model: PreTrainedModel) -> bool:
    """Tell whether a model has several MTP layers, or one with a window, which are left to transformers' own MTP."""
    kinds = set(getattr(model.config.get_text_config(decoder=True), "mtp_layer_types", None) or ())
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
        state_dict={**weights, "embed_tokens.weight": torch.zeros(1, config.hidden_size)},
        dtype=model.dtype,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    own.config.vocab_size = size
    wrong = (
        f"{name} ({kind.removesuffix('_keys')})" for kind in found if kind.endswith("_keys") for name in found[kind]
    )
    return own, sorted(wrong)
