"""Refuses calls that can't be lossy, before any forward pass."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import StaticCache

from .. import compat
from ..acceptors import Acceptor
from ..decoding.outputs import OUTPUTS
from ..errors import LossyUnsupportedError, LossyValueError, warn_once
from ..models.cache_rows import movable
from ..models.own_states import grammar_in
from .config import LossyConfig
from .drafter_choice import DrafterChoice
from .given import GivenFields
from .prepared import Prepared


def check_decoding(mode: Any, given: GivenFields) -> None:
    """Refuse decoding that is neither greedy nor sampling."""
    asked = given.merged("num_beams", "cache_implementation", *_OTHER_DECODING)
    beams = asked.get("num_beams")
    if beams is not None and not (isinstance(beams, int) and beams <= 1):
        origin, remedy = given.origin("num_beams"), given.remedy("num_beams", 1)
        if (pipeline := compat.pipeline_with_default("num_beams", beams)) is not None:
            origin, remedy = f", {pipeline}'s default", "pass `generate_kwargs={'num_beams': 1}` to the pipeline"
        raise LossyValueError(
            f"`num_beams` has to be 1 with `lossy_mode` {mode!r}, but is {beams!r}{origin}: beam search ranks whole "
            f"texts against each other, and a rule judges single tokens; {remedy}"
        )
    if asked.get("cache_implementation") == "paged":
        raise LossyUnsupportedError(
            f"`cache_implementation` 'paged'{given.origin('cache_implementation')} asks for continuous batching, which "
            f"has a loop of its own; {given.remedy('cache_implementation', 'dynamic')} with `lossy_mode` {mode!r}"
        )
    for name, kind in _OTHER_DECODING.items():
        value, harmless = asked.get(name), 1 if name == "num_beam_groups" else None
        if value is not None and not (isinstance(value, int | float) and value <= (harmless or 0)):
            raise LossyUnsupportedError(
                f"`{name}` {value!r}{given.origin(name)} asks for {kind}, so rules can't judge drafts by the target's "
                f"distribution; {given.remedy(name, harmless)} with `lossy_mode` {mode!r}"
            )


_OTHER_DECODING = {
    "num_beam_groups": "group beam search, which ranks whole texts against each other",
    "constraints": "constrained beam search, which ranks whole texts against each other",
    "force_words_ids": "constrained beam search, which ranks whole texts against each other",
    "penalty_alpha": "contrastive search, which chooses tokens by a comparison of hidden states",
    "dola_layers": "DoLa, which chooses tokens by a comparison of layers",
}


def check_prepared(model: PreTrainedModel, acceptor: Acceptor, call: Prepared, given: GivenFields) -> None:
    mode = acceptor.name
    embedded = call.inputs.get("inputs_embeds") is not None and not model.config.is_encoder_decoder
    if call.ids.shape[1] == 0 or embedded:
        raise LossyUnsupportedError(
            f"`lossy_mode` {mode!r} needs the prompt as `input_ids`, but got `inputs_embeds` or no tokens; pass tokens"
        )
    if not call.inputs.get("use_cache", True):
        raise LossyValueError(
            f"`use_cache` has to be True with `lossy_mode` {mode!r}, but is False{given.origin('use_cache')}; "
            f"{given.remedy('use_cache', True)}"
        )
    for name in OUTPUTS if acceptor.unverified_drafting is not None else ():
        if getattr(call.config, f"output_{name}", False):
            raise LossyUnsupportedError(
                f"`output_{name}`, which is set{given.origin(f'output_{name}')}, can't be used with `lossy_mode` "
                f"{mode!r}, which commits unverified tokens; {given.remedy(f'output_{name}', False)}"
            )
    check_processors(f"`lossy_mode` {mode!r}", call.processors, given)
    if (refusal := compat.obstacle_in_cross_attention(model, call.inputs)) is not None:
        raise LossyUnsupportedError(
            f"`cross_attention_mask` is not given, so `lossy_mode` {mode!r} can't be used with {type(model).__name__}: "
            f"{refusal}; pass `cross_attention_mask`, or use eager attention"
        )
    cache = compat.cache_of(call.inputs)
    if acceptor.unverified_drafting is not None and compat.quantises(cache):
        raise LossyUnsupportedError(
            f"`lossy_mode` {mode!r} drafts any number of tokens, but a {type(cache).__name__} can forget only a few; "
            f"use a dynamic cache{_asked(cache, given)}"
        )
    refusal = compat.obstacle_to_rollback(model, several=True) or compat.obstacle_in_cache(model, cache)
    if refusal is not None:
        raise LossyUnsupportedError(
            f"`lossy_mode` {mode!r} has to roll the cache back, but {refusal}{_asked(cache, given)}"
        )
    if call.batch > 1 and call.streamer is not None:
        raise LossyValueError(
            f"`streamer` can only show a batch of 1, but the batch has {call.batch} rows (prompts × "
            "`num_return_sequences`); leave it out"
        )


def _asked(cache: Any, given: GivenFields) -> str:
    """Say which field asked for a call's own cache, if one did."""
    kind = given.merged(name := "cache_implementation").get(name)
    if kind in (None, "dynamic") or compat.belongs_to_user(cache):
        return ""
    return f"; `{name}` {kind!r}{given.origin(name)} asks for it: {given.remedy(name, 'dynamic')}"


def check_processors(user: str, processors: LogitsProcessorList, given: GivenFields | None = None) -> None:
    """Refuse processors that can't be asked about rejected tokens."""
    for processor in processors:
        for kind, name in compat.STATEFUL_PROCESSORS.items():
            if isinstance(processor, kind):
                remedy = "leave it out"
                if given is not None and given(name) is not None:
                    remedy = f"`{name}`{given.origin(name)} asks for it; {given.remedy(name, None)}"
                raise LossyUnsupportedError(
                    f"{user} can't be used with {type(processor).__name__}, which keeps a state from token to token; "
                    f"{remedy}"
                )


def check_tree(
    model: PreTrainedModel, draft: nn.Module, config: LossyConfig, call: Prepared, given: GivenFields
) -> None:
    if config.tree.drawn and not call.config.do_sample:
        raise LossyUnsupportedError(
            "`branches` of `tree` in `lossy_config` draws nodes, but `do_sample` is False; set it, or give `tree` a "
            "`depth` in place of `branches`"
        )
    cache = compat.cache_of(call.inputs)
    asked = _asked(cache, given)
    obstacle = compat.obstacle_to_trees(model, call.inputs)
    caches = [cache, compat.new_cache(draft)] if isinstance(draft, PreTrainedModel) else [cache]
    caches = [own for own in caches if not isinstance(own, StaticCache)]
    if obstacle is None and cache is not None and not all(map(movable, caches)):
        kinds = sorted({type(layer).__name__ for own in caches for layer in own.layers})
        obstacle = f"one path of a tree can't be kept in layers of {kinds}"
    if obstacle is None and isinstance(draft, PreTrainedModel):
        obstacle = compat.obstacle_to_trees(draft, {})
    if obstacle is not None:
        raise LossyUnsupportedError(
            f"`tree` in `lossy_config` can't be used with `lossy_mode` {config.rule.name!r} here: {obstacle}; "
            f"leave it out to draft chains{asked}"
        )


def check_together(mode: str, call: Prepared, given: GivenFields) -> None:
    """Refuse rows whose caches can't be decoded together."""
    cache = compat.cache_of(call.inputs)
    if not (isinstance(cache, StaticCache) or movable(cache)):
        raise LossyUnsupportedError(
            f"`lossy_mode` {mode!r} has to move the rows of the cache where {_rows(call)}, but can't move the layers "
            f"{sorted({type(layer).__name__ for layer in cache.layers})}; call generate() for one prompt at a time"
            + _asked(cache, given)
        )


def check_own_cache(mode: str, call: Prepared) -> None:
    """Refuse a caller's cache of several rows."""
    cache = compat.cache_of(call.inputs)
    if compat.belongs_to_user(cache) or compat.tokens_in(call.inputs):
        raise LossyUnsupportedError(
            f"`{compat.CACHE}` can't be passed in with `lossy_mode` {mode!r} where {_rows(call)}, because rows that "
            "end leave the cache; leave it out, and pass the prompts whole"
        )


def _rows(call: Prepared) -> str:
    return f"the batch has {call.batch} rows (prompts × `num_return_sequences`)"


def check_row_by_row(mode: str, call: Prepared) -> None:
    """Refuse to decode rows one by one where processes have to keep in step, or an input can't be split."""
    if (name := compat.obstacle_to_rows(call.model, call.inputs, call.ids)) is not None:
        raise LossyUnsupportedError(
            f"`lossy_mode` {mode!r} decodes the {call.batch} rows of the batch one by one with these models, but can't "
            f"tell which part of `{name}` belongs to which row; call generate() for one prompt at a time"
        )
    if call.synced_gpus:
        raise LossyUnsupportedError(
            f"`synced_gpus` is set, but `lossy_mode` {mode!r} decodes the {call.batch} rows of the batch one by one "
            "with these models, so processes can't keep in step; call generate() for one prompt at a time"
        )


def check_states(call: Prepared) -> None:
    """Refuse an EAGLE-3 head on a target whose layers don't all have one state for every token."""
    if (obstacle := compat.obstacle_to_states(call.model, call.inputs)) is not None:
        raise LossyUnsupportedError(
            "`assistant_model` is an EAGLE-3 head, which reads one state of every layer for every token, but "
            f"{obstacle}; pass a draft model"
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
    grammar = grammar_in(processors)
    if grammar is not None and config.limits.scope is None and not config.rule.is_lossless(do_sample):
        warn_once(
            f"`lossy_mode` {config.rule.name!r} decodes losslessly, because {type(grammar).__name__} of "
            '`logits_processor` holds the text to a grammar; pass `scope={"except": []}` in `lossy_config` to be lossy '
            "there too"
        )
    return grammar is not None


def check_certificate(
    config: LossyConfig, model: PreTrainedModel, choice: DrafterChoice, own: GenerationConfig, given: GivenFields
) -> None:
    if config.certificate is None:
        return
    by_model = choice.drafts_with_model or choice.drafts_with_eagle3
    draft = choice.assistant_model if by_model else None
    draws: Any = (1.0 if own.temperature is None else own.temperature) if own.do_sample else None
    if own.do_sample and (own.top_k or (own.top_p is not None and own.top_p < 1)):
        draws = f"{draws:g} with top_k {own.top_k} and top_p {own.top_p}"
    certified = config.certificate.setting.config.get("num_assistant_tokens")
    gamma = certified if choice.automatic and certified == "auto" else choice.num_assistant_tokens
    # Calibrations leave these fields at their defaults, or to the draft's own files.
    ends = {name: given(name) for name in ("assistant_confidence_threshold", "num_assistant_tokens_schedule")}
    others = [f"`{name}` {value!r}" for name, value in ends.items() if value not in (None, 0, "constant")]
    gamma = f"{gamma} with {' and '.join(others)}" if others else gamma
    config.certificate.check(config.rule, config.in_full(), model, draft, gamma, draws)
