"""Chooses a call's drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .. import compat
from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..drafting.cross_tokenizer import Translation
from ..drafting.draft_ends import (
    DEFAULT_NUM_TOKENS,
    LONGEST,
    DraftStop,
    check_confidence,
    check_num_tokens,
    check_schedule,
    constant_length,
)
from ..drafting.encoder_decoder import check_encoder_decoder_draft
from ..drafting.model import check_decoder, check_draft_model
from ..drafting.mtp import mtp_of
from ..drafting.per_row import missing
from ..drafting.shared_keys import check_shared_keys
from ..drafting.state_head import StateHead
from ..drafting.vocabulary import check_tokenizers, check_vocabularies, same_tokenizer, vocabulary_sizes
from ..errors import LossyUnsupportedError, LossyValueError
from ..models.cache_rows import movable
from .config import LossyConfig
from .given import GivenFields

DrafterFactory = Callable[..., CandidateGenerator]

TRANSFORMERS_OPTIONS = ("prompt_lookup_num_tokens", "use_mtp", "speculation_type")
"""Fields by which transformers' ``generate()`` chooses one of its own drafters."""

DRAFTERS = ("assistant_model", "candidate_generator", "assistant_early_exit", *TRANSFORMERS_OPTIONS)
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


@dataclass(frozen=True, eq=False)
class DrafterChoice:
    """The user's choice of a drafter."""

    target: PreTrainedModel
    assistant_model: PreTrainedModel | None
    candidate_generator: CandidateGenerator | DrafterFactory | None
    num_assistant_tokens: int  # γ; with 0, the target decodes alone in our loop and on our runners
    automatic: bool  # whether the user left γ to us
    confidence: float | None  # `assistant_confidence_threshold`, where set explicitly
    schedule: str  # `num_assistant_tokens_schedule`
    options: Mapping[str, Any]  # of transformers' own drafters, see TRANSFORMERS_OPTIONS
    special: bool  # whether transformers' own drafter runs a special kind of draft model
    translation: Translation | None  # between the tokenizers of target and draft, where they differ
    stop: DraftStop | None  # ends drafts early, beside `confidence`

    @classmethod
    def from_keywords(
        cls,
        target: PreTrainedModel,
        kwargs: Mapping[str, Any],
        given: GivenFields,
        generator: Any,
        config: LossyConfig,
    ) -> DrafterChoice:
        """Read the keywords about drafting among ``kwargs``, the keywords of ``generate()``."""
        assistant = kwargs.get("assistant_model")
        if assistant is not None and not (isinstance(assistant, nn.Module) and hasattr(assistant, "config")):
            raise LossyValueError(f"`assistant_model` has to be a transformers model, but is {assistant!r}")
        options = {name: value for name, value in given.merged(*TRANSFORMERS_OPTIONS).items() if value}
        if (layers := given.merged("assistant_early_exit").get("assistant_early_exit")) is not None:
            raise LossyUnsupportedError(
                f"`assistant_early_exit` {layers!r} can't be used with `lossy_mode`, because transformers' drafter for "
                "it changes the target's own configuration while it drafts; pass `assistant_early_exit=None`, and an "
                "`assistant_model` or `prompt_lookup_num_tokens`"
            )
        own = assistant is None and generator is None and not options.keys() - {"use_mtp", "prompt_lookup_num_tokens"}
        if own and options.get("use_mtp") and not compat.several_or_sliding_mtp(target):
            del options["use_mtp"]
            assistant = mtp_of(target) if given("num_assistant_tokens", None) != 0 else None
        special = not isinstance(assistant, StateHead) and not {"speculation_type", "use_mtp"}.isdisjoint(options)
        ours = assistant is not None and generator is None and not special
        inner = compat.innermost(assistant)
        if ours and isinstance(inner, PreTrainedModel) and not inner.can_generate():
            raise LossyValueError(
                f"`assistant_model` has to be a model that can generate, but is a {type(inner).__name__}, which has no "
                "LM head; load it with AutoModelForCausalLM"
            )
        theirs = getattr(assistant, "generation_config", None)
        gamma = given("num_assistant_tokens", theirs)
        if gamma == 0:
            assistant, generator, options, special = None, None, {}, False
        schedule = given("num_assistant_tokens_schedule", theirs)
        confidence = given("assistant_confidence_threshold", theirs)
        stop = config.stop_drafting
        automatic = gamma is None or gamma == "auto"
        if automatic:
            gamma = DEFAULT_NUM_TOKENS
            unsaid = schedule in (None, "constant") and confidence is None and stop is None
            if ours and unsaid and (stop := config.default_stop) is not None:
                gamma = LONGEST
            gamma = min(gamma, getattr(assistant, "longest", None) or gamma)
        return cls(
            target=target,
            assistant_model=assistant,
            candidate_generator=generator,
            num_assistant_tokens=gamma,
            automatic=automatic,
            confidence=confidence,
            schedule="constant" if schedule is None else schedule,
            options=options,
            special=special,
            translation=_translation(target, assistant, kwargs.get("tokenizer"), kwargs.get("assistant_tokenizer")),
            stop=stop,
        )

    @cached_property
    def looked_up(self) -> int:
        """How many tokens may be looked up before a draft model is asked; 0 where it always drafts."""
        model = self.assistant_model is not None and self.candidate_generator is None and not self.special
        return self.options.get("prompt_lookup_num_tokens", 0) if model else 0

    def check(self, config: LossyConfig) -> None:
        """Raise where nothing can draft for the rule."""
        rule, name = config.rule, config.rule.name
        check_num_tokens(self.num_assistant_tokens, least=0)
        check_schedule(self.schedule)
        check_confidence(self.confidence)
        if self.num_assistant_tokens == 0:
            return self._check_nothing(config)
        if self.stop is not None:
            self._check_stop(rule)
        if self.options.get("speculation_type") and self.assistant_model is None:
            raise LossyValueError(
                f"`speculation_type` {self.options['speculation_type']!r} needs its draft model as `assistant_model`"
            )
        if self.special and compat.has_recurrent_state(self.target):
            raise LossyUnsupportedError(
                f"transformers' own drafter can't follow {type(self.target).__name__}, whose recurrent state has to be "
                "read again; pass an `assistant_model` without `use_mtp` and `speculation_type`, or `use_mtp` alone"
            )
        if self.special and self.options.get("prompt_lookup_num_tokens"):
            raise LossyUnsupportedError(
                "`prompt_lookup_num_tokens` drafts in the rounds that a draft model leaves out, but this drafter reads "
                "the target's states of every round; leave out either"
            )
        if rule.unverified_drafting is not None and (self.looked_up or not self.drafts_with_model):
            raise LossyValueError(
                f"the rule {name!r} runs a head on the draft model's states; pass an `assistant_model` with the "
                "target's tokenizer, and no other drafter"
            )
        rule.check_models(self.target, None if self.drafts_from_states else self.assistant_model)
        if self.candidate_generator is not None:
            if not isinstance(self.candidate_generator, CandidateGenerator) and not callable(self.candidate_generator):
                raise LossyValueError(
                    "`candidate_generator` has to be a CandidateGenerator or a callable that returns one, but is "
                    f"{self.candidate_generator!r}"
                )
        elif self.drafts_from_states:
            head = self.assistant_model
            head.check(self.target)
            if head.longest is not None and self.num_assistant_tokens > head.longest:
                raise LossyValueError(
                    f"`num_assistant_tokens` has to be at most {head.longest} with {head.title} whose blocks have "
                    f"{head.longest + 1} tokens, but is {self.num_assistant_tokens}; leave it out, or give fewer"
                )
        elif self.drafts_with_shared_keys:
            check_shared_keys(self.target, self.assistant_model)
        elif self.translation is not None:
            check_decoder(self.assistant_model)
        elif self.drafts_with_model:
            check_draft_model(self.target, self.assistant_model)
        elif self.encoded:
            check_vocabularies(self.target, self.assistant_model)
            check_encoder_decoder_draft(self.target, self.assistant_model)
        elif self.is_empty:
            raise LossyValueError(
                f"`lossy_mode` {name!r} needs a drafter; pass `assistant_model`, `prompt_lookup_num_tokens` or "
                "`candidate_generator`"
            )
        if "draft_hidden" in rule.needs and (self.drafts_from_states or self.drafts_with_shared_keys):
            kind = self.assistant_model.title if self.drafts_from_states else f"a {type(self.assistant_model).__name__}"
            raise LossyUnsupportedError(
                f"the rule {name!r} reads the states of a draft model, but {kind} drafts, which has none; pass a draft "
                "model"
            )
        if config.tree is not None:
            self._check_tree(rule)
        for need in ("draft_probs", "draft_hidden"):
            if self.looked_up and need in rule.needs:
                raise missing(need, rule, "`prompt_lookup_num_tokens`", "leave it out")

    def _check_nothing(self, config: LossyConfig) -> None:
        if config.rule.name != "lossless" or config.tree is not None or self.stop is not None:
            raise LossyValueError(
                "`num_assistant_tokens` is 0, so nothing is drafted: leave out `tree` and `stop_drafting` in "
                f"`lossy_config`, and take 'lossless' for `lossy_mode`, not {config.rule.name!r}"
            )

    def _check_stop(self, rule: Acceptor) -> None:
        if self.confidence:
            raise LossyValueError(
                "`assistant_confidence_threshold` and `stop_drafting` in `lossy_config` both end drafts early; leave "
                "out either"
            )
        if self.assistant_model is None or self.candidate_generator is not None or self.special:
            raise LossyUnsupportedError(
                "`stop_drafting` in `lossy_config` reads the distribution of an `assistant_model` that this package "
                "drafts with; leave it out with other drafters"
            )
        if rule.unverified_drafting is not None:
            raise LossyUnsupportedError(
                f"the rule {rule.name!r} itself ends drafts; leave out `stop_drafting` in `lossy_config`"
            )

    def _check_tree(self, rule: Acceptor) -> None:
        """Raise where no trees can be drafted for the rule."""
        name, without = rule.name, "leave out `tree` in `lossy_config`"
        if not (self.drafts_with_model or (self.drafts_from_states and self.assistant_model.longest is None)):
            raise LossyUnsupportedError(
                "`tree` in `lossy_config` is for an `assistant_model` that drafts in the target's tokens by itself, an "
                f"EAGLE-3 head or an MTP layer; {without} with other drafters"
            )
        if rule.unverified_drafting is not None:
            raise LossyUnsupportedError(
                f"the rule {name!r} commits unverified tokens of one text, so it has no trees; {without}"
            )
        if "draft_probs" in rule.needs:
            raise LossyUnsupportedError(
                f"the rule {name!r} reads the draft's distribution, which nodes of a tree don't have; {without}, or "
                "use a rule that reads the target alone"
            )
        if self.confidence or self.stop is not None or self.schedule != "constant" or self.looked_up:
            raise LossyUnsupportedError(
                "`assistant_confidence_threshold`, `stop_drafting`, `num_assistant_tokens_schedule` and "
                "`prompt_lookup_num_tokens` are about chains, but `tree` in `lossy_config` asks for trees; leave out "
                "either"
            )

    @property
    def is_empty(self) -> bool:
        drafted = self.num_assistant_tokens != 0
        return drafted and self.assistant_model is None and self.candidate_generator is None and not self.options

    @cached_property
    def drafts_by_itself(self) -> bool:
        """Whether the assistant drafts in the target's tokens, by itself: a model, or a head on the target's states."""
        others = self.candidate_generator is not None or self.translation is not None or self.special
        return self.assistant_model is not None and not self.target.config.is_encoder_decoder and not others

    @cached_property
    def drafts_with_model(self) -> bool:
        """Whether it is a draft model that does so."""
        return self.drafts_by_itself and not self.drafts_from_states and not self.drafts_with_shared_keys

    @cached_property
    def drafts_from_states(self) -> bool:
        """Whether a head on the target's own states drafts."""
        return isinstance(self.assistant_model, StateHead) and self.candidate_generator is None

    @cached_property
    def drafts_with_shared_keys(self) -> bool:
        """Whether a model that reads the target's keys drafts."""
        given = self.candidate_generator is None and not self.special
        return given and compat.drafts_from_target_states(self.assistant_model)

    @property
    def longest(self) -> int | None:
        """The largest number of tokens in a chain, where it is known beforehand."""
        if self.num_assistant_tokens == 0:
            return 0
        if self.assistant_model is None:
            return self.options.get("prompt_lookup_num_tokens")
        by_model = constant_length(self.num_assistant_tokens, self.schedule) if self.drafts_by_itself else None
        return by_model and max(by_model, self.looked_up)

    @property
    def encoded(self) -> bool:
        """Whether a draft model reads an encoder's states."""
        return self.target.config.is_encoder_decoder and self.assistant_model is not None

    @property
    def row_by_row(self) -> bool:
        """Whether the rows of a batch can't be decoded together."""
        models = (self.target, *([self.assistant_model] if self.drafts_with_model else ()))
        return (
            self.target.config.is_encoder_decoder
            or self.special
            or any(not compat.shares_forwards(model) or not movable(compat.new_cache(model)) for model in models)
        )


def _translation(
    target: PreTrainedModel, assistant: PreTrainedModel | None, tokenizer: Any, assistant_tokenizer: Any
) -> Translation | None:
    if assistant is None or assistant_tokenizer is None or isinstance(assistant, StateHead):
        return None
    if tokenizer is None:
        raise LossyValueError("`assistant_tokenizer` needs the target's tokenizer to compare with; pass `tokenizer`")
    for name, value in (("tokenizer", tokenizer), ("assistant_tokenizer", assistant_tokenizer)):
        if not hasattr(value, "get_vocab"):
            raise LossyValueError(f"`{name}` has to be a tokenizer, but is {value!r}")
    if same_tokenizer(tokenizer, assistant_tokenizer):
        return None
    check_tokenizers(target, assistant, tokenizer, assistant_tokenizer)
    return Translation(tokenizer, assistant_tokenizer, *vocabulary_sizes(target, assistant))
