"""Which drafter a call has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import LogitsProcessorList, PreTrainedModel

from .. import compat
from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..drafting import (
    DEFAULT_NUM_TOKENS,
    ModelDrafter,
    RunningDrafter,
    check_draft_model,
    check_num_tokens,
    mask_of,
    window_of,
)
from ..drafting.batches import Apart, BatchDrafter, Together
from ..drafting.cross_tokenizer import TranslatingDrafter, Translation
from ..drafting.draft_length import check_confidence, check_schedule
from ..drafting.early_exit import first_layers
from ..drafting.encoder_decoder import EncodedDrafter, check_encoded_draft
from ..drafting.model import check_decoder
from ..drafting.vocabulary import check_vocabularies, same_tokenizer, vocabulary_of
from ..errors import LossyUnsupportedError, LossyValueError
from ..sampling import Randomness
from .prepared import Prepared

DrafterFactory = Callable[..., CandidateGenerator]

STOCK_OPTIONS = ("prompt_lookup_num_tokens", "use_mtp", "speculation_type")
"""Fields by which transformers' ``generate()`` chooses one of its own drafters."""


@dataclass(frozen=True, eq=False)
class DrafterChoice:
    """What the user said about drafting.

    Attributes
    ----------
    target
        The model to draft for.
    assistant_model
        The draft model, or None.
    candidate_generator
        The user's own drafter or a factory for it, or None.
    num_assistant_tokens
        γ.
    confidence, schedule
        ``assistant_confidence_threshold`` and ``num_assistant_tokens_schedule`` where set explicitly.
    options
        What transformers' own drafters go by, see :data:`STOCK_OPTIONS`.
    translation
        Between the tokenizers of target and draft, where they are not the same.
    """

    target: PreTrainedModel
    assistant_model: PreTrainedModel | None
    candidate_generator: CandidateGenerator | DrafterFactory | None
    num_assistant_tokens: int | str
    confidence: float | None
    schedule: str
    options: Mapping[str, Any]
    translation: Translation | None

    @classmethod
    def take(
        cls, target: PreTrainedModel, kwargs: dict[str, Any], explicit: Callable[..., Any], generator: Any
    ) -> DrafterChoice:
        """Remove the keywords about drafting from those of ``generate()``.

        Parameters
        ----------
        target
            The model to draft for.
        kwargs
            Keywords of ``generate()``.
        explicit
            From a field's name, and configurations besides the target's, to what the user set it to.
        generator
            The user's ``candidate_generator``, or None.
        """
        assistant = kwargs.pop("assistant_model", None)
        if assistant is not None and not (isinstance(assistant, nn.Module) and hasattr(assistant, "config")):
            raise LossyValueError(f"`assistant_model` has to be a transformers model, but is {assistant!r}")
        options = {name: explicit(name) for name in STOCK_OPTIONS if explicit(name)}
        if (layers := explicit("assistant_early_exit")) is not None:
            assistant = first_layers(target, layers)
        for name in ("assistant_early_exit", *STOCK_OPTIONS):
            kwargs.pop(name, None)
        theirs = getattr(assistant, "generation_config", None)
        gamma = explicit("num_assistant_tokens", theirs)
        schedule = explicit("num_assistant_tokens_schedule", theirs)
        tokenizers = kwargs.get("tokenizer"), kwargs.pop("assistant_tokenizer", None)
        return cls(
            target=target,
            assistant_model=assistant,
            candidate_generator=generator,
            num_assistant_tokens=DEFAULT_NUM_TOKENS if gamma is None else gamma,
            confidence=explicit("assistant_confidence_threshold", theirs),
            schedule="constant" if schedule is None else schedule,
            options=options,
            translation=_translation(target, assistant, *tokenizers),
        )

    def check(self, acceptor: Acceptor) -> None:
        """Raise where nothing can draft for the rule."""
        name = acceptor.name
        check_num_tokens(self.num_assistant_tokens)
        check_schedule(self.schedule)
        check_confidence(self.confidence)
        if self.options.get("speculation_type") and self.assistant_model is None:
            raise LossyValueError(
                f"`speculation_type` {self.options['speculation_type']!r} needs its draft model; pass `assistant_model`"
            )
        if acceptor.run_ahead is not None and not self.drafts_with_model:
            raise LossyValueError(
                f"the rule {name!r} runs a head on the draft model's states; pass an `assistant_model` with the "
                "target's tokenizer, and no other drafter"
            )
        acceptor.check_models(self.target, self.assistant_model)
        if self.candidate_generator is not None:
            if not _is_drafter(self.candidate_generator) and not callable(self.candidate_generator):
                raise LossyValueError(
                    "`candidate_generator` has to be a CandidateGenerator or a callable that returns one, but is "
                    f"{self.candidate_generator!r}"
                )
        elif self.translation is not None:
            check_decoder(self.assistant_model)
        elif self._encoded:
            check_vocabularies(self.target, self.assistant_model)
            check_encoded_draft(self.target, self.assistant_model)
        elif self.drafts_with_model:
            check_draft_model(self.target, self.assistant_model)
        elif self.assistant_model is None and not self.options:
            raise LossyValueError(
                f"`lossy_mode` {name!r} needs a drafter; pass `assistant_model`, `prompt_lookup_num_tokens` or "
                "`candidate_generator`"
            )

    def check_batch(self, rows: int) -> None:
        """Raise where there is one drafter for several rows."""
        if _is_drafter(self.candidate_generator):
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(self.candidate_generator).__name__} drafts for one sequence, but the "
                f"batch has {rows} rows; pass a function that returns one, which is called once per row"
            )

    @property
    def drafts_with_model(self) -> bool:
        """Whether a draft model drafts in the target's tokens, by itself."""
        others = self.candidate_generator is not None or self.translation is not None or self.one_by_one
        return self.assistant_model is not None and not others

    @property
    def _encoded(self) -> bool:
        return self.target.config.is_encoder_decoder and self.assistant_model is not None

    @property
    def one_by_one(self) -> bool:
        """Whether the rows of a batch can't be decoded together."""
        return self.target.config.is_encoder_decoder or self._stock_with_model

    @property
    def _stock_with_model(self) -> bool:
        """Whether transformers' own drafter for a special kind of draft model is to be used."""
        special = self.options.get("speculation_type") or self.options.get("use_mtp")
        return bool(special) or compat.drafts_from_target_states(self.assistant_model)

    def drafter(
        self,
        acceptor: Acceptor,
        call: Prepared,
        processors: LogitsProcessorList,
        randomness: Randomness,
        make: Callable[..., ModelDrafter] = ModelDrafter,
    ) -> CandidateGenerator:
        """Return the drafter for one sequence; ``make`` makes that of a draft model."""
        if self.drafts_with_model:
            return self._model_drafter(acceptor, call, processors, randomness, make)
        return self._checked(acceptor, self._given(acceptor, call, randomness))

    def batch_drafter(
        self, acceptor: Acceptor, call: Prepared, processors: LogitsProcessorList, randomness: Randomness
    ) -> BatchDrafter:
        """Return the drafter for several rows."""
        if self.drafts_with_model:
            return Together(self._model_drafter(acceptor, call, processors, randomness))
        drafter = Apart(
            lambda row: self._checked(acceptor, self._given(acceptor, call.row(row), randomness)), call.batch
        )
        if any(x.requires_model_outputs for x in drafter.drafters):
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(drafter.drafters[0]).__name__} drafts from the states of one sequence, "
                f"but the batch has {call.batch} rows; call generate() for one prompt at a time"
            )
        return drafter

    def _model_drafter(
        self,
        acceptor: Acceptor,
        call: Prepared,
        processors: LogitsProcessorList,
        randomness: Randomness,
        make: Callable[..., ModelDrafter] = ModelDrafter,
    ) -> ModelDrafter:
        settings = self._settings(call, processors, randomness)
        settings["vocabulary"] = vocabulary_of(self.target, self.assistant_model)
        if acceptor.run_ahead is not None:
            return RunningDrafter.of(self.assistant_model, acceptor.run_ahead.head, **settings)
        return make(
            self.assistant_model,
            window_of(self.num_assistant_tokens, self.schedule, self.assistant_model, acceptor.name),
            **self._kept(acceptor, call),
            **settings,
        )

    def _settings(self, call: Prepared, processors: LogitsProcessorList, randomness: Randomness) -> dict[str, Any]:
        return {
            "processors": processors,
            "do_sample": call.config.do_sample,
            "max_length": call.config.max_length,
            "attention_mask": mask_of(call.ids, call.inputs),
            "randomness": randomness,
        }

    def _kept(self, acceptor: Acceptor, call: Prepared) -> dict[str, Any]:
        return {
            # Without q there is neither a residual nor a ratio; greedily only some rules look at it.
            "keep_logits": call.config.do_sample or "draft_probs" in acceptor.needs,
            "keep_hidden": "draft_hidden" in acceptor.needs,
            "confidence": self.confidence,
        }

    def _given(self, acceptor: Acceptor, call: Prepared, randomness: Randomness) -> CandidateGenerator:
        """Return a drafter for one sequence: the user's own, one for another tokenizer, or transformers' own."""
        drafter = self.candidate_generator
        if drafter is None and self.translation is not None:
            return TranslatingDrafter(
                self.assistant_model,
                window_of(self.num_assistant_tokens, self.schedule),
                translation=self.translation,
                prompt=call.ids,
                **self._kept(acceptor, call),
                **self._settings(call, call.processors, randomness),
            )
        if drafter is None and self._encoded:
            return EncodedDrafter(
                self.assistant_model,
                window_of(self.num_assistant_tokens, self.schedule),
                call=call,
                vocabulary=vocabulary_of(self.target, self.assistant_model),
                **self._kept(acceptor, call),
                **self._settings(call, call.processors, randomness),
            )
        if drafter is None:
            config = copy.deepcopy(call.config)
            config.update(**self.options, assistant_early_exit=None, num_assistant_tokens=self.num_assistant_tokens)
            return compat.stock_drafter(
                self.target, config, call.ids, call.processors, call.inputs, self.assistant_model
            )
        if not _is_drafter(drafter):
            drafter = drafter(
                input_ids=call.ids,
                generation_config=call.config,
                logits_processor=call.processors,
                model_kwargs=call.inputs,
            )
            if not _is_drafter(drafter):
                raise LossyValueError(
                    f"`candidate_generator` has to return a CandidateGenerator, but returned {drafter!r}"
                )
        if isinstance(drafter, ModelDrafter):
            drafter.reset()  # it may have drafted for another prompt
        return drafter

    @staticmethod
    def _checked(acceptor: Acceptor, drafter: CandidateGenerator) -> CandidateGenerator:
        if "draft_probs" in acceptor.needs and isinstance(drafter, compat.DRAFTERS_WITHOUT_LOGITS):
            raise LossyValueError(
                f"the rule {acceptor.name!r} needs the draft's distribution, but {type(drafter).__name__} has none; "
                "pass an `assistant_model`, or use a rule that reads the target alone, e.g. 'topk' or 'typical'"
            )
        return drafter


def _translation(
    target: PreTrainedModel, assistant: PreTrainedModel | None, tokenizer: Any, assistant_tokenizer: Any
) -> Translation | None:
    if assistant is None or assistant_tokenizer is None:
        return None
    if tokenizer is None:
        raise LossyValueError("`assistant_tokenizer` needs the target's tokenizer to compare with; pass `tokenizer`")
    for name, value in (("tokenizer", tokenizer), ("assistant_tokenizer", assistant_tokenizer)):
        if not hasattr(value, "get_vocab"):
            raise LossyValueError(f"`{name}` has to be a tokenizer, but is {value!r}")
    if same_tokenizer(tokenizer, assistant_tokenizer):
        return None
    sizes = [model.config.get_text_config(decoder=True).vocab_size for model in (target, assistant)]
    return Translation(tokenizer, assistant_tokenizer, *sizes)


def _is_drafter(value: Any) -> bool:
    return isinstance(value, CandidateGenerator)
