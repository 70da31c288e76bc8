"""Refuses calls that can't be lossy, before any forward pass."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import StaticCache
from transformers.generation.candidate_generator import CandidateGenerator

from ..compat.caches import CACHE, belongs_to_user, new_cache, obstacle_in_cache
from ..compat.inputs import WITH_TOKENS, obstacle_in_tokens
from ..compat.models import has_adapters_by_row
from ..compat.multimodal import obstacle_in_cross_attention, obstacle_to_rows, obstacle_to_states
from ..compat.probe import obstacle_to_padding, obstacle_to_rollback, obstacle_to_trees
from ..compat.processors import UNREPEATABLE
from ..decoding.outputs import OUTPUTS
from ..drafting.vocabulary import vocabulary_sizes
from ..errors import LossyUnsupportedError, LossyValueError, warn_once
from ..models.cache_rows import movable
from ..models.own_states import grammar_in
from .config import GivenFields, LossyConfig
from .drafters.base import Kind
from .prepared import Prepared


def check_decoding(mode: Any, given: GivenFields) -> None:
    """Refuse decoding that is neither greedy nor sampling."""
    asked = given.merged("num_beams", "cache_implementation", "assistant_ensemble_weight", *_OTHER_DECODING)
    beams = asked.get("num_beams")
    if beams is not None and not (isinstance(beams, int) and beams <= 1):
        raise LossyValueError(
            f"`num_beams` has to be 1 with `lossy_mode` {mode!r}, but is {beams!r}: beam search ranks whole texts "
            f"against each other, and a rule judges single tokens; pass `num_beams=1`"
        )
    for name, why in _OTHER_CACHES.items():
        if asked.get("cache_implementation") == name:
            raise LossyUnsupportedError(
                f"`cache_implementation` {name!r} can't be used with `lossy_mode` {mode!r}, because it {why}; leave it "
                "out"
            )
    if (weight := asked.get("assistant_ensemble_weight", 1)) != 1:
        raise LossyUnsupportedError(
            f"`assistant_ensemble_weight` {weight!r} asks for transformers' own rule, in place of which `lossy_mode` "
            f"{mode!r} decides; leave it out, or pass the mode 'ensemble' with this `weight` in `lossy_config`"
        )
    for name, kind in _OTHER_DECODING.items():
        value, most = asked.get(name), 1 if name == "num_beam_groups" else 0
        if value is not None and not (isinstance(value, int | float) and value <= most):
            raise LossyUnsupportedError(
                f"`{name}` {value!r} can't be used with `lossy_mode` {mode!r}, because it asks for {kind}, so rules "
                "can't judge drafts by the target's distribution; leave it out"
            )


_OTHER_CACHES = {
    "paged": "asks for continuous batching, which has a loop of its own",
    "quantized": "rounds tokens together and can't forget some of them",
}
_OTHER_DECODING = {
    "num_beam_groups": "group beam search, which ranks whole texts against each other",
    "constraints": "constrained beam search, which ranks whole texts against each other",
    "force_words_ids": "constrained beam search, which ranks whole texts against each other",
    "penalty_alpha": "contrastive search, which chooses tokens by a comparison of hidden states",
    "dola_layers": "DoLa, which chooses tokens by a comparison of layers",
}


def check_prepared(config: LossyConfig, kind: Kind, call: Prepared) -> None:
    model, rule, mode = call.model, config.rule, config.rule.name
    embedded = call.inputs.get("inputs_embeds") is not None and not model.config.is_encoder_decoder
    if call.ids.shape[1] == 0 or embedded:
        raise LossyUnsupportedError(
            f"`lossy_mode` {mode!r} needs the prompt as `input_ids`, but got `inputs_embeds` or no tokens; pass tokens"
        )
    if not call.inputs.get("use_cache", True):
        raise LossyValueError(f"`use_cache` has to be True with `lossy_mode` {mode!r}, but is False; leave it out")
    if call.held and (refusal := obstacle_in_tokens(call.ids, call.inputs, call.config, call.held)) is not None:
        raise LossyValueError(f"`{CACHE}` can't be used with `lossy_mode` {mode!r}: {refusal}")
    for name in OUTPUTS if rule.unverified_drafting is not None else ():
        if getattr(call.config, f"output_{name}", False):
            raise LossyUnsupportedError(
                f"`output_{name}` can't be used with `lossy_mode` {mode!r}, which commits unverified tokens; leave it "
                "out"
            )
    if call.config.prefill_chunk_size is not None:
        _check_chunks(call)
    _check_tokens(kind, call)
    check_processors(f"`lossy_mode` {mode!r}", call.processors)
    if (refusal := obstacle_in_cross_attention(model, call.inputs)) is not None:
        raise LossyUnsupportedError(
            f"`cross_attention_mask` is not given, so `lossy_mode` {mode!r} can't be used with {type(model).__name__}: "
            f"{refusal}; pass `cross_attention_mask`, or use eager attention"
        )
    if config.tree is not None:
        _check_tree(config, kind.model, call)
    if kind.reads and (obstacle := obstacle_to_states(model, call.inputs)) is not None:
        raise LossyUnsupportedError(
            f"`assistant_model` is {kind.model.title}, which reads one state of a layer for each token, "
            f"but {obstacle}; pass a draft model"
        )
    if call.batch > 1:
        _check_batch(mode, kind, call)
    # The last, because a recurrent model is asked by a forward pass.
    refusal = obstacle_to_rollback(model, several=True) or obstacle_in_cache(model, call.cache, call.inputs)
    if refusal is not None:
        raise LossyUnsupportedError(f"`lossy_mode` {mode!r} has to roll the cache back, but {refusal}{_asked(call)}")
    if (refusal := obstacle_to_padding(model, call.batch > 1)) is not None:
        mask, whole = call.inputs.get("attention_mask"), call.held == call.ids.shape[1]
        if mask is not None and not bool(mask.all()):
            raise LossyUnsupportedError(
                f"`attention_mask` has padding, but {refusal}; pass one prompt at a time, without padding"
            )
        if whole:
            raise LossyUnsupportedError(
                f"`{CACHE}` holds all of `input_ids`, but {refusal}; leave out the last of them when filling it"
            )


def _asked(call: Prepared) -> str:
    """Say which field asked for a call's own cache, if one did."""
    kind = call.config.cache_implementation
    if kind in (None, "dynamic") or belongs_to_user(call.cache):
        return ""
    return f"; `cache_implementation` {kind!r} asks for it; leave it out"


def _check_chunks(call: Prepared) -> None:
    """Refuse chunks of a prompt whose tokens belong to other inputs, as ``generate()`` does."""
    size = call.config.prefill_chunk_size
    if not (isinstance(size, int) and size > 0):
        raise LossyValueError(f"`prefill_chunk_size` has to be a whole number above 0, but is {size!r}")
    others = {name for name, value in call.inputs.items() if value is not None and value is not False}
    others -= WITH_TOKENS
    if others and call.ids.shape[1] > size and not call.model.config.is_encoder_decoder:
        raise LossyUnsupportedError(
            f"`prefill_chunk_size` {size} would split the prompt, but not its inputs {sorted(others)}; leave it out"
        )


def _check_tokens(kind: Kind, call: Prepared) -> None:
    """Refuse ids without an embedding where only tokens are read: those of images may have any, also in a cache."""
    others = call.inputs.keys() - WITH_TOKENS
    embeddings = call.model.get_input_embeddings()
    if not isinstance(embeddings, nn.Embedding) or (others and any(call.inputs[x] is not None for x in others)):
        return
    unknown = call.ids[(call.ids < 0) | (call.ids >= embeddings.num_embeddings)]
    if not len(unknown) or call.held:
        return
    sizes = f"{type(call.model).__name__} has {embeddings.num_embeddings} tokens"
    for draft in kind.cached:
        sizes += f", and `assistant_model` {vocabulary_sizes(draft)[0]}"
    raise LossyValueError(
        f"`input_ids` holds the token {int(unknown[0])}, but the vocabulary of {sizes}; encode the text with the "
        "target's own tokenizer, or give the target's embeddings a row for each of its tokens"
    )


def check_processors(user: str, processors: LogitsProcessorList) -> None:
    for processor in processors:
        if isinstance(processor, UNREPEATABLE):
            raise LossyUnsupportedError(
                f"{user} can't be used with {UNREPEATABLE.__name__}, the processor of `guidance_scale`, which keeps a "
                "state from token to token; leave it out"
            )


def _check_tree(config: LossyConfig, draft: nn.Module, call: Prepared) -> None:
    cache, of_draft = call.cache, isinstance(draft, PreTrainedModel)
    obstacle = obstacle_to_trees(call.model, call.inputs)
    caches = [cache, new_cache(draft)] if of_draft else [cache]
    caches = [own for own in caches if not isinstance(own, StaticCache)]
    if obstacle is None and cache is not None and not all(map(movable, caches)):
        kinds = sorted({type(layer).__name__ for own in caches for layer in own.layers})
        obstacle = f"one path of a tree can't be kept in layers of {kinds}"
    if obstacle is None and of_draft:
        obstacle = obstacle_to_trees(draft, {})
    if obstacle is not None:
        raise LossyUnsupportedError(
            f"`tree` in `lossy_config` can't be used with `lossy_mode` {config.rule.name!r} here: {obstacle}; "
            f"leave it out to draft chains{_asked(call)}"
        )


def _check_batch(mode: str, kind: Kind, call: Prepared) -> None:
    rows = f"the batch has {call.batch} rows (prompts × `num_return_sequences`)"
    if call.streamer is not None:
        raise LossyValueError(f"`streamer` can only show a batch of 1, but {rows}; leave it out")
    if has_adapters_by_row(call.model):
        raise LossyUnsupportedError(
            f"`adapter_names` can't be used with `lossy_mode` {mode!r} where {rows}, because rows that end leave the "
            "batch; choose an adapter by `set_adapter`, and call generate() for the prompts of each apart"
        )
    if isinstance(generator := kind.asked.generator, CandidateGenerator):
        raise LossyUnsupportedError(
            f"`candidate_generator` {type(generator).__name__} drafts for one sequence, but {rows}; "
            "pass a function that makes a generator for each row"
        )
    if belongs_to_user(call.cache) or call.held:
        raise LossyUnsupportedError(
            f"`{CACHE}` can't be passed in with `lossy_mode` {mode!r} where {rows}, because rows that end leave "
            "the cache; leave it out, and pass the prompts whole"
        )


def check_row_by_row(mode: str, call: Prepared) -> None:
    """Refuse to decode rows one by one where processes have to keep in step, or an input can't be split."""
    alone = f"`lossy_mode` {mode!r} decodes the {call.batch} rows of the batch one by one with these models"
    if (name := obstacle_to_rows(call.model, call.inputs, call.ids)) is not None:
        raise LossyUnsupportedError(
            f"{alone}, but can't tell which part of `{name}` belongs to which row; call generate() for one prompt at a "
            "time"
        )
    if call.synced_gpus:
        raise LossyUnsupportedError(
            f"{alone}, so `synced_gpus` can't keep processes in step; call generate() for one prompt at a time"
        )


def check_mode(config: LossyConfig, do_sample: bool, longest: int | None) -> None:
    """Refuse a lossy setting under ``require_lossless``, and warn once of a setting without effect.

    ``longest`` is the largest number of tokens in a chain, where it is known.
    """
    if config.require_lossless and not config.rule.is_lossless(do_sample):
        raise LossyValueError(
            f"`require_lossless` is set in `lossy_config`, but {config.rule!r} is lossy when "
            f"{'sampling' if do_sample else 'decoding greedily'}; leave it out or choose another rule"
        )
    if (warning := config.rule.check_mode(do_sample, config.tree.depth if config.tree else longest)) is not None:
        warn_once(warning)


def check_grammar(config: LossyConfig, processors: LogitsProcessorList, do_sample: bool) -> bool:
    """Tell whether the text follows a grammar, and warn once if a lossy rule is lossless because of it."""
    grammar = grammar_in(processors) if processors else None
    if grammar is not None and config.limits.scope is None and not config.rule.is_lossless(do_sample):
        warn_once(
            f"`lossy_mode` {config.rule.name!r} decodes losslessly, because {type(grammar).__name__} of "
            '`logits_processor` holds the text to a grammar; pass `scope={"except": []}` in `lossy_config` to be lossy '
            "there too"
        )
    return grammar is not None


def check_certificate(config: LossyConfig, kind: Kind, call: Prepared, given: GivenFields) -> None:
    own, draft = call.config, kind.model if "certificate" in kind.gives else None
    draws: Any = (1.0 if own.temperature is None else own.temperature) if own.do_sample else None
    if own.do_sample and (own.top_k or (own.top_p is not None and own.top_p < 1)):
        draws = f"{draws:g} with top_k {own.top_k} and top_p {own.top_p}"
    certified = config.certificate.setting.config.get("num_assistant_tokens")
    lengths = kind.lengths
    gamma = certified if lengths.automatic and certified == "auto" else lengths.num_assistant_tokens
    # Calibrations leave these fields at their defaults, or to the draft's own files.
    names = ("assistant_confidence_threshold", "num_assistant_tokens_schedule", "prompt_lookup_num_tokens")
    ends = {name: given(name) for name in names}
    others = [f"`{name}` {value!r}" for name, value in ends.items() if value not in (None, 0, "constant")]
    gamma = f"{gamma} with {' and '.join(others)}" if others else gamma
    config.certificate.check(config.rule, config.in_full(), call.model, draft, gamma, draws)
