"""Chooses a call's drafter, and refuses what it can't do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..acceptors import Acceptor
from ..compat.models import innermost
from ..drafting.draft_ends import SCHEDULE, check_num_tokens
from ..drafting.state_head import StateHead
from ..errors import LossyUnsupportedError, LossyValueError, brief
from ..values import ONE_OR_MORE, bounded
from .config import GivenFields, LossyConfig
from .drafters.base import Asked, Kind, Lengths, Nothing, chosen
from .drafters.generators import OPTIONS, missing_q

DRAFTERS = ("assistant_model", "candidate_generator", "assistant_early_exit", *OPTIONS)
"""Keywords of ``generate()`` that choose a drafter."""
DRAFTING = (
    *DRAFTERS,
    "tokenizer",
    "assistant_tokenizer",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)
"""Keywords of ``generate()`` that choose a drafter or its settings."""

LACKS = {
    "stop": "`stop_drafting` in `lossy_config` reads the distribution of an `assistant_model` that this package drafts "
    "with; leave it out with other drafters",
    "unverified": "the rule {rule!r} runs a head on the draft model's states; pass an `assistant_model` with the "
    "target's tokenizer, and no other drafter",
    "hidden": "the rule {rule!r} reads the states of a draft model, but {title} drafts, which has none; {remedy}",
    "tree": "`tree` in `lossy_config` is for an `assistant_model` that drafts in the target's tokens by itself, an "
    "EAGLE-3 head or an MTP layer; leave out `tree` in `lossy_config` with other drafters",
}
"""What an error says where a drafter does not give what a call wants."""


def drafter_of(
    target: PreTrainedModel, kwargs: Mapping[str, Any], given: GivenFields, generator: Any, config: LossyConfig
) -> Kind:
    """Return who drafts in a call, by the keywords about drafting among ``kwargs``, those of ``generate()``."""
    assistant = kwargs.get("assistant_model")
    if assistant is not None and not (isinstance(assistant, nn.Module) and hasattr(assistant, "config")):
        given = f"a {type(assistant).__name__}; pass its `draft`" if hasattr(assistant, "draft") else brief(assistant)
        raise LossyValueError(f"`assistant_model` has to be a transformers model, but is {given}")
    options = given.merged("assistant_early_exit", *OPTIONS)
    if (layers := options.pop("assistant_early_exit", None)) is not None:
        raise LossyUnsupportedError(
            f"`assistant_early_exit` {layers!r} can't be used with `lossy_mode`, because transformers' drafter for "
            "it changes the target's own configuration while it drafts; pass `assistant_early_exit=None`, and an "
            "`assistant_model` or `prompt_lookup_num_tokens`"
        )
    lengths = lengths_of(given, assistant, config)
    if lengths.num_assistant_tokens == 0:
        return Nothing(Asked(target, config, lengths))
    options = {name: value for name, value in options.items() if value}
    if isinstance(assistant, StateHead):  # which is asked for by itself
        options = {name: options[name] for name in options if name == "prompt_lookup_num_tokens"}
    tokenizers, theirs = None, kwargs.get("assistant_tokenizer")
    if assistant is not None and theirs is not None:
        tokenizers = _other_tokenizers(kwargs.get("tokenizer"), theirs)
    asked = Asked(target, config, lengths, assistant, generator, options, tokenizers)
    kind = chosen(asked) or Nothing(asked)
    inner = innermost(assistant)
    if "stop" in kind.gives and isinstance(inner, PreTrainedModel) and not inner.can_generate():
        raise LossyValueError(
            f"`assistant_model` has to be a model that can generate, but is a {type(inner).__name__}, which has no "
            "LM head; load it with AutoModelForCausalLM"
        )
    return kind


def lengths_of(given: GivenFields, assistant: Any, config: LossyConfig) -> Lengths:
    """Return how much to draft, as a call and its models say it."""
    theirs = getattr(assistant, "generation_config", None)
    gamma = given("num_assistant_tokens", theirs)
    schedule = given("num_assistant_tokens_schedule", theirs)
    return Lengths(
        num_assistant_tokens=gamma,
        automatic=gamma is None or gamma == "auto",
        confidence=given("assistant_confidence_threshold", theirs),
        schedule="constant" if schedule is None else schedule,
        stop=config.stop_drafting,
    )


def check_drafter(kind: Kind) -> None:
    """Raise where a drafter can't do what the call wants."""
    rule, tree, lengths = kind.asked.config.rule, kind.asked.config.tree, kind.lengths
    check_num_tokens(lengths.num_assistant_tokens, least=0)
    SCHEDULE.check("num_assistant_tokens_schedule", lengths.schedule)
    if lengths.confidence is not None:
        bounded(0, 1).check("assistant_confidence_threshold", lengths.confidence)
    if (count := kind.asked.options.get("prompt_lookup_num_tokens")) is not None:
        ONE_OR_MORE.check("prompt_lookup_num_tokens", count)
    if isinstance(kind, Nothing):
        return kind.check()
    if lengths.stop is not None:
        _check_stop(kind, lengths, rule)
    if rule.unverified_drafting is not None:
        _refuse(kind, "unverified", rule)
    kind.check()
    rule.check_models(kind.asked.target, kind.asked.assistant if kind.compares else None)
    if kind.most is not None and lengths.num_assistant_tokens > kind.most:
        raise LossyValueError(
            f"`num_assistant_tokens` has to be at most {kind.most} with {kind.title} whose blocks have "
            f"{kind.most + 1} tokens, but is {lengths.num_assistant_tokens}; leave it out, or give fewer"
        )
    if "draft_hidden" in rule.needs:
        _refuse(kind, "hidden", rule)
    if tree is not None:
        _check_tree(kind, lengths, rule)
    if "draft_probs" in rule.needs and "q" not in kind.gives:
        raise missing_q(rule, kind.title, kind.remedy)


def _other_tokenizers(tokenizer: Any, assistant_tokenizer: Any) -> tuple[Any, Any] | None:
    """Return both tokenizers where they differ."""
    if tokenizer is None:
        raise LossyValueError("`assistant_tokenizer` needs the target's tokenizer to compare with; pass `tokenizer`")
    for name, value in (("tokenizer", tokenizer), ("assistant_tokenizer", assistant_tokenizer)):
        if not hasattr(value, "get_vocab"):
            raise LossyValueError(f"`{name}` has to be a tokenizer, but is {value!r}")
    same = tokenizer is assistant_tokenizer or tokenizer.get_vocab() == assistant_tokenizer.get_vocab()
    return None if same else (tokenizer, assistant_tokenizer)


def _refuse(kind: Kind, want: str, rule: Acceptor) -> None:
    """Raise where a drafter lacks what a call wants."""
    if want not in kind.gives:
        raise LossyUnsupportedError(LACKS[want].format(rule=rule.name, title=kind.title, remedy=kind.remedy))


def _check_stop(kind: Kind, lengths: Lengths, rule: Acceptor) -> None:
    if lengths.confidence:
        raise LossyValueError(
            "`assistant_confidence_threshold` and `stop_drafting` in `lossy_config` both end drafts early; leave "
            "out either"
        )
    _refuse(kind, "stop", rule)
    if rule.unverified_drafting is not None:
        raise LossyUnsupportedError(
            f"the rule {rule.name!r} itself ends drafts; leave out `stop_drafting` in `lossy_config`"
        )


def _check_tree(kind: Kind, lengths: Lengths, rule: Acceptor) -> None:
    """Raise where no trees can be drafted for the rule."""
    _refuse(kind, "tree", rule)
    without = "leave out `tree` in `lossy_config`"
    if rule.unverified_drafting is not None:
        raise LossyUnsupportedError(
            f"the rule {rule.name!r} commits unverified tokens of one text, so it has no trees; {without}"
        )
    if "draft_probs" in rule.needs:
        raise LossyUnsupportedError(
            f"the rule {rule.name!r} reads the draft's distribution, which nodes of a tree don't have; {without}, or "
            "use a rule that reads the target alone"
        )
    if lengths.confidence or lengths.stop is not None or lengths.schedule != "constant" or kind.looked_up:
        raise LossyUnsupportedError(
            "`assistant_confidence_threshold`, `stop_drafting`, `num_assistant_tokens_schedule` and "
            "`prompt_lookup_num_tokens` are about chains, but `tree` in `lossy_config` asks for trees; leave out "
            "either"
        )
