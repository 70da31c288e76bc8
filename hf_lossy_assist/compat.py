"""Everything this package knows about transformers' versions and private names."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers import cache_utils as _caches
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    QuantizedCache,
    StaticCache,
)
from transformers.generation import candidate_generator as _candidates
from transformers.generation import logits_process as _processors
from transformers.generation.candidate_generator import CandidateGenerator

from .errors import LossyValueError

if TYPE_CHECKING:
    from .rows import Move

DECODING_METHODS = ("_sample", "_assisted_decoding")
"""The methods of `GenerationMixin` that `generate()` ends in for one sequence per prompt."""

# Layers of a static cache that a position rolls back. The second kind, which holds nothing, is the newer one.
REWINDING_LAYERS = tuple(getattr(_caches, name) for name in ("StaticLayer", "DummyLayer") if hasattr(_caches, name))

# The second draws no tokens, whatever the law that it reports.
DRAFTERS_WITHOUT_LOGITS = tuple(
    getattr(_candidates, name)
    for name in ("PromptLookupCandidateGenerator", "SinglePositionMultiTokenCandidateGenerator")
    if hasattr(_candidates, name)
)

# Functions of one position's logits alone: all positions of a round can go through them at once.
PREFIX_FREE_PROCESSORS = tuple(
    getattr(_processors, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopPLogitsWarper",
        "TopKLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "SuppressTokensLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
    )
    if hasattr(_processors, name)
)

# These look at a row's number in the batch, not only at its tokens.
_INDEXED_PROCESSORS = (
    _processors.PrefixConstrainedLogitsProcessor,
    _processors.RepetitionPenaltyLogitsProcessor,  # counts the prompts' padding
    _processors.EncoderRepetitionPenaltyLogitsProcessor,
    _processors.EncoderNoRepeatNGramLogitsProcessor,
)

# These carry a cache or a context of their own from call to call, so asking twice about one prefix corrupts them.
STATEFUL_PROCESSORS = (
    _processors.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    _processors.SynthIDTextWatermarkLogitsProcessor,
)

# Who wants to choose a model's drafter, in every thread. One attribute serves all of them, whoever leaves first.
_intercepts: weakref.WeakKeyDictionary[PreTrainedModel, dict[int, list[Callable[..., CandidateGenerator]]]] = (
    weakref.WeakKeyDictionary()
)
_intercepts_lock = threading.Lock()

_IN_LINE_WITH_IDS = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")

_SLIDING_LAYERS_ROLL_BACK = hasattr(DynamicSlidingWindowLayer, "activate_past_recording")


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """Return an empty cache for ``model`` that can be rolled back after any number of forwards.

    Layers of a sliding window keep everything: not every version can roll those back over several forwards, and
    the attention mask sees to the window.
    """
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    _keep_everything(cache)
    cache.activate_past_recording()
    return cache


def _keep_everything(cache: DynamicCache) -> None:
    cache.layers = [DynamicLayer() if isinstance(x, DynamicSlidingWindowLayer) else x for x in cache.layers]


def ready_for_rollback(cache: Any) -> None:
    """Let the empty cache that ``generate()`` has just made keep what this version can't roll back otherwise."""
    fresh = type(cache) is DynamicCache and not belongs_to_user(cache)
    if fresh and not _SLIDING_LAYERS_ROLL_BACK:
        _keep_everything(cache)


def text_cache(cache: Cache) -> Cache:
    """Return the part of a cache that grows with the text, of one that holds an encoder's states too."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def new_cross_cache() -> EncoderDecoderCache:
    """Return an empty cache for a decoder that looks at an encoder's states."""
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


def encode(model: PreTrainedModel, inputs: Any, mask: Any) -> Any:
    """Return what a model's encoder says of its input."""
    given = {} if mask is None else {"attention_mask": mask.to(device_of(model))}
    name = model.get_encoder().main_input_name
    prepared = model._maybe_prepare_encoder_kwargs_for_generation(
        inputs.to(device_of(model)), given, name, model.generation_config
    )
    return prepared["encoder_outputs"]


@contextmanager
def recording(cache: DynamicCache) -> Iterator[None]:
    """Let ``cache`` be rolled back inside the block; afterwards it behaves as it did before."""
    own = text_cache(cache)
    recorded = [getattr(layer, "record_past", None) for layer in own.layers]
    own.activate_past_recording()
    try:
        yield
    finally:
        for i, layer in enumerate(own.layers):
            if hasattr(layer, "record_past"):
                layer.record_past = recorded[i] if i < len(recorded) else False


def rollback(cache: DynamicCache, tokens: int) -> None:
    """Forget the last ``tokens`` tokens. Recording layers also shrink to their window, so call it with 0 too."""
    if tokens > 0 or (_SLIDING_LAYERS_ROLL_BACK and cache.get_seq_length() > 0):
        text_cache(cache).crop(-tokens)


def refusal_of_cache(model: PreTrainedModel, cache: Any) -> str | None:
    """Say why ``cache`` can't be rolled back, or None where it can."""
    if has_recurrent_state(model):
        return f"{type(model).__name__} keeps a recurrent state, which can't be rolled back"
    if isinstance(cache, StaticCache):
        return None  # by position, or a dynamic one takes its place: see `compiled`
    if isinstance(cache, QuantizedCache):
        return f"a {type(cache).__name__} can't be rolled back (yet); use a dynamic cache"
    if isinstance(cache, EncoderDecoderCache):
        return refusal_of_cache(model, cache.self_attention_cache)
    if not isinstance(cache, DynamicCache):
        return f"a {type(cache).__name__} is not a DynamicCache"
    if not _SLIDING_LAYERS_ROLL_BACK and any(isinstance(layer, DynamicSlidingWindowLayer) for layer in cache.layers):
        return "this version of transformers can't roll back a sliding window; upgrade to 5.17 or newer"
    return None


def mark_as_user_s(cache: Any) -> None:
    """Mark what was passed to ``generate()`` as a cache; newer versions do it themselves."""
    if isinstance(cache, _caches.Cache):
        cache._is_user_defined = True


def belongs_to_user(cache: Any) -> bool:
    """Tell whether a cache was passed to ``generate()``, which makes one otherwise."""
    return getattr(cache, "_is_user_defined", False)


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
    """Tell whether the model keeps a state that can't be rolled back."""
    return model._is_stateful


def origin_of(model: PreTrainedModel) -> tuple[str, str | None]:
    """Return what the model was loaded from, a Hub id or a folder or nothing, and the commit if it is known."""
    return model.config._name_or_path, getattr(model.config, "_commit_hash", None)


def is_offloaded(module: nn.Module) -> bool:
    """Tell whether accelerate brings the module's weights only for a forward."""
    return hasattr(module, "_hf_hook")


def padding_token(config: GenerationConfig) -> int:
    """Return the token that fills rows up in a prepared call; any, where the model has none."""
    token = getattr(config, "_pad_token_tensor", None)
    return 0 if token is None else int(token)


def compiles_by_itself(model: PreTrainedModel, model_kwargs: dict[str, Any], config: GenerationConfig) -> bool:
    """Tell whether plain ``generate()`` would compile the model's forward."""
    return model._valid_auto_compile_criteria(model_kwargs, config)


def unwrap(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside PEFT's and ``torch.compile``'s wrappers."""
    inner = getattr(model, "_orig_mod", model)
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    if not isinstance(inner, GenerationMixin):
        raise LossyValueError(
            f"`model` has to be a transformers model that can generate, but is a {type(model).__name__}"
        )
    return inner


def replaces_decoding(model: PreTrainedModel) -> bool:
    """Tell whether the model's class has a decoding loop of its own instead of transformers'."""
    return any(
        getattr(type(model), name) is not getattr(GenerationMixin, name)
        for name in DECODING_METHODS
        if hasattr(GenerationMixin, name)
    )


def prepare_candidate_inputs(
    model: PreTrainedModel,
    candidate_ids: torch.LongTensor,
    model_kwargs: dict[str, Any],
    drafted: int,
    new_tokens: int | None,
    first: bool,
    pending: int = 0,
) -> dict[str, Any]:
    """Return the inputs of one target forward over ``drafted`` tokens and the committed ones before them.

    ``new_tokens`` is the number of tokens to send, None for all; logits are asked for at the last
    ``drafted + 1`` positions. ``pending`` committed tokens came after ``model_kwargs`` were prepared.
    """
    kwargs = dict(model_kwargs)
    longer = drafted + pending
    with_encoder = model.config.is_encoder_decoder
    prefix = "decoder_" if with_encoder else ""
    if (mask := kwargs.get(f"{prefix}attention_mask")) is not None:
        kwargs = _candidates._prepare_attention_mask(kwargs, mask.shape[1] + longer, with_encoder)
    if (types := kwargs.get("token_type_ids")) is not None:
        kwargs = _candidates._prepare_token_type_ids(kwargs, types.shape[1] + longer)
    if (types := kwargs.get("mm_token_type_ids")) is not None:
        kwargs["mm_token_type_ids"] = nn.functional.pad(types, (0, longer))  # all text
    if (positions := kwargs.get(f"{prefix}position_ids")) is not None:
        kwargs = _candidates._prepare_position_ids(kwargs, positions.shape[-1] + longer, with_encoder)
    inputs = model.prepare_inputs_for_generation(
        candidate_ids, next_sequence_length=new_tokens, is_first_iteration=first, **kwargs
    )
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = drafted + 1
    return inputs


def stock_drafter(
    model: PreTrainedModel,
    generation_config: GenerationConfig,
    input_ids: Any,
    processors: Any,
    model_kwargs: Any,
    assistant_model: PreTrainedModel | None = None,
) -> CandidateGenerator:
    """Return the drafter that stock assisted generation would build."""
    return model._get_candidate_generator(
        assistant_model=assistant_model,
        generation_config=generation_config,
        input_ids=input_ids,
        inputs_tensor=input_ids,
        logits_processor=processors,
        model_kwargs=model_kwargs,
    )


def drafts_from_target_states(assistant: PreTrainedModel | None) -> bool:
    """Tell whether a draft model is one that reads the target's keys and values instead of its own."""
    return type(assistant).__name__.startswith(("Gemma4Assistant", "Gemma4UnifiedAssistant"))


@contextmanager
def intercepted_drafter(model: PreTrainedModel, intercept: Callable[..., CandidateGenerator]) -> Iterator[None]:
    """Inside the block, ask ``intercept(build, **kwargs)`` whenever stock assisted generation wants a drafter.

    ``build(**kwargs)`` returns the drafter that it would have used, and ``kwargs`` are its own arguments. Other
    threads are not affected.
    """
    thread = threading.get_ident()
    with _intercepts_lock:
        by_thread = _intercepts.setdefault(model, {})
        if not by_thread:
            build = model._get_candidate_generator

            def choose(**kwargs: Any) -> CandidateGenerator:
                stack = by_thread.get(threading.get_ident())
                return stack[-1](build, **kwargs) if stack else build(**kwargs)

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


def unseen_tokens(input_ids: torch.LongTensor, model_kwargs: dict[str, Any], config: GenerationConfig) -> int | None:
    """Return how many of ``input_ids`` a cache passed in by the user lacks; None where all are to be sent."""
    past = int(model_kwargs["past_key_values"].get_seq_length())
    if not past:
        return None
    mask = model_kwargs.get("attention_mask")
    covered = mask.shape[1] if mask is not None else getattr(config, "_mask_length", input_ids.shape[1])
    # A mask longer than the ids says that the ids are only what is new.
    return input_ids.shape[1] - past if covered == input_ids.shape[1] else None


def advance_inputs(
    model: PreTrainedModel, outputs: Any, model_kwargs: dict[str, Any], committed: int
) -> dict[str, Any]:
    """Return the model's inputs after ``committed`` more tokens: longer mask and positions, newest cache."""
    return model._update_model_kwargs_for_generation(
        outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder, num_new_tokens=committed
    )


def move_inputs(model_kwargs: dict[str, Any], move: Move, ids: torch.Tensor) -> None:
    """Let inputs that stand in line with ``ids`` ``(B, S)`` follow the rows of a batch."""
    for name in _IN_LINE_WITH_IDS:
        if (values := model_kwargs.get(name)) is not None:
            model_kwargs[name] = move.take(values, 0)
    if model_kwargs.get("attention_mask") is None and len(set(move.ends)) > 1:
        model_kwargs["attention_mask"] = move.take(torch.ones_like(ids), 0)


def processes_rows_alike(processor: Any) -> bool:
    """Tell whether a logits processor is known not to care which row of the batch it looks at."""
    return type(processor).__module__ == _processors.__name__ and not isinstance(processor, _INDEXED_PROCESSORS)


def forward_accepts(model: PreTrainedModel, name: str) -> bool:
    """Tell whether the ``forward`` of the model, inside all wrappers, has a parameter called ``name``."""
    return name in inspect.signature(unwrap(model).forward).parameters


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


__all__ = [
    "DECODING_METHODS",
    "DRAFTERS_WITHOUT_LOGITS",
    "PREFIX_FREE_PROCESSORS",
    "REWINDING_LAYERS",
    "STATEFUL_PROCESSORS",
    "CandidateGenerator",
    "advance_inputs",
    "attention_of",
    "belongs_to_user",
    "compiles_by_itself",
    "device_of",
    "drafts_from_target_states",
    "encode",
    "forward_accepts",
    "has_recurrent_state",
    "idle_forward",
    "intercepted_drafter",
    "is_offloaded",
    "mark_as_user_s",
    "move_inputs",
    "new_cache",
    "new_cross_cache",
    "origin_of",
    "padding_token",
    "prepare_candidate_inputs",
    "processes_rows_alike",
    "ready_for_rollback",
    "recording",
    "refusal_of_cache",
    "replaces_decoding",
    "rollback",
    "stock_drafter",
    "supports_static_cache",
    "text_cache",
    "unfinished",
    "unseen_tokens",
    "unwrap",
    "with_attention_of",
]
