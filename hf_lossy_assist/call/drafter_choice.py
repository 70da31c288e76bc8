"""Which drafter a call has."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import LogitsProcessorList, PreTrainedModel

from .. import compat
from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..decoding.progress import Progress
from ..drafting import Drafter
from ..drafting.cross_tokenizer import CrossTokenizerDrafter, Translation
from ..drafting.draft_length import (
    DEFAULT_NUM_TOKENS,
    check_confidence,
    check_num_tokens,
    check_schedule,
    draft_length_of,
    node_count_of,
)
from ..drafting.eagle3 import Eagle3
from ..drafting.eagle3_drafter import Eagle3Drafter
from ..drafting.early_exit import first_layers
from ..drafting.encoder_decoder import EncoderDecoderDrafter, check_encoder_decoder_draft
from ..drafting.model import ModelDrafter, check_decoder, check_draft_model, mask_of
from ..drafting.per_row import GeneratorDrafter, PerRowDrafter
from ..drafting.run_ahead import RunAheadDrafter
from ..drafting.tree import Eagle3TreeDrafter, TreeDrafter
from ..drafting.tree_config import TreeConfig
from ..drafting.vocabulary import check_tokenizers, check_vocabularies, same_tokenizer, vocabulary_of
from ..errors import LossyUnsupportedError, LossyValueError
from ..forwards import Forwards
from ..forwards.cache_rows import movable
from ..sampling import Randomness
from .prepared import Prepared

DrafterFactory = Callable[..., CandidateGenerator]

STOCK_OPTIONS = ("prompt_lookup_num_tokens", "use_mtp", "speculation_type")
"""Fields by which transformers' ``generate()`` chooses one of its own drafters."""

DRAFTERS = ("assistant_model", "candidate_generator", "assistant_early_exit", *STOCK_OPTIONS)
"""Keywords of ``generate()`` that say what drafts."""
DRAFTING = (
    *DRAFTERS,
    "tokenizer",
    "assistant_tokenizer",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)
"""These, and those that say how."""


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
    early_exit
        How many of the target's own layers draft, where they do.
    """

    target: PreTrainedModel
    assistant_model: PreTrainedModel | None
    candidate_generator: CandidateGenerator | DrafterFactory | None
    num_assistant_tokens: int | str
    confidence: float | None
    schedule: str
    options: Mapping[str, Any]
    translation: Translation | None
    early_exit: int | None = None

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
            early_exit=layers,
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
        if self._stock_with_model and compat.has_recurrent_state(self.target):
            raise LossyUnsupportedError(
                f"drafting from the target's states is not supported with {type(self.target).__name__}, which keeps a "
                "recurrent state and reads kept tokens again; pass an `assistant_model` or `prompt_lookup_num_tokens`"
            )
        if acceptor.run_ahead is not None and not self.drafts_with_model:
            raise LossyValueError(
                f"the rule {name!r} runs a head on the draft model's states; pass an `assistant_model` with the "
                "target's tokenizer, and no other drafter"
            )
        acceptor.check_models(self.target, None if self.drafts_with_eagle3 else self.assistant_model)
        if self.candidate_generator is not None:
            if not _is_drafter(self.candidate_generator) and not callable(self.candidate_generator):
                raise LossyValueError(
                    "`candidate_generator` has to be a CandidateGenerator or a callable that returns one, but is "
                    f"{self.candidate_generator!r}"
                )
        elif self.drafts_with_eagle3:
            self.assistant_model.check(self.target)
            if "draft_hidden" in acceptor.needs:
                raise LossyUnsupportedError(
                    f"the rule {name!r} reads the states of a draft model, but `assistant_model` is an EAGLE-3 head, "
                    "which has none; pass a draft model"
                )
        elif self.translation is not None:
            check_decoder(self.assistant_model)
        elif self._encoded:
            check_vocabularies(self.target, self.assistant_model)
            check_encoder_decoder_draft(self.target, self.assistant_model)
        elif self.drafts_with_model:
            check_draft_model(self.target, self.assistant_model)
        elif self.is_empty:
            raise LossyValueError(
                f"`lossy_mode` {name!r} needs a drafter; pass `assistant_model`, `prompt_lookup_num_tokens` or "
                "`candidate_generator`"
            )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to draft."""
        return self.assistant_model is None and self.candidate_generator is None and not self.options

    def check_tree(self, acceptor: Acceptor) -> None:
        """Raise where no trees can be drafted for the rule."""
        name, without = acceptor.name, "leave out `tree` in `lossy_config`"
        if not self.drafts_with_model and not self.drafts_with_eagle3:
            raise LossyUnsupportedError(
                "`tree` in `lossy_config` is for an `assistant_model` that drafts in the target's tokens by itself, or "
                f"an EAGLE-3 head; {without} with other drafters"
            )
        if acceptor.run_ahead is not None:
            raise LossyUnsupportedError(
                f"the rule {name!r} lets the draft run along one text without the target, so it has no trees; {without}"
            )
        if "draft_probs" in acceptor.needs:
            raise LossyUnsupportedError(
                f"the rule {name!r} reads the draft's distribution, which nodes of a tree don't have; {without}, or "
                "use a rule that has a meaning without"
            )
        if self.confidence is not None or self.schedule != "constant":
            raise LossyUnsupportedError(
                "`assistant_confidence_threshold` and `num_assistant_tokens_schedule` are about chains, but `tree` in "
                "`lossy_config` asks for trees; leave out either"
            )

    def check_batch(self, rows: int) -> None:
        """Raise where there is one drafter for several rows."""
        if _is_drafter(self.candidate_generator):
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(self.candidate_generator).__name__} drafts for one sequence, but the "
                f"batch has {rows} rows; pass a function that returns one, which is called once per row"
            )

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """What drafts, and how much: the same in two calls that draft alike."""
        own = self.assistant_model is None or self.early_exit is not None
        model = self.early_exit if own else weakref.ref(self.assistant_model)
        generator = self.candidate_generator
        other = None if generator is None else getattr(generator, "__qualname__", type(generator).__qualname__)
        return model, other, tuple(sorted(self.options)), self.num_assistant_tokens

    @property
    def drafts_with_model(self) -> bool:
        """Whether a draft model drafts in the target's tokens, by itself."""
        others = self.candidate_generator is not None or self.translation is not None or self._stock_with_model
        own = self.assistant_model is not None and not self.target.config.is_encoder_decoder
        return own and not others and not self.drafts_with_eagle3

    @property
    def drafts_with_eagle3(self) -> bool:
        """Whether a head on the target's own states drafts."""
        return isinstance(self.assistant_model, Eagle3) and self.candidate_generator is None

    @property
    def _encoded(self) -> bool:
        return self.target.config.is_encoder_decoder and self.assistant_model is not None

    @property
    def row_by_row(self) -> bool:
        """Whether the rows of a batch can't be decoded together."""
        models = (self.target, *([self.assistant_model] if self.drafts_with_model else ()))
        return (
            self.target.config.is_encoder_decoder
            or self._stock_with_model
            or not all(movable(compat.new_cache(model)) for model in models)
        )

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
        progress: Progress,
        forwards: Callable[[], Forwards] | None = None,
        tree: TreeConfig | None = None,
    ) -> Drafter:
        """Return the call's drafter; ``forwards`` makes those of a draft model, where they are no usual ones."""
        if tree is not None:
            return self._tree_drafter(tree, acceptor, call, processors, randomness)
        if self.drafts_with_model:
            settings = self._settings(call, processors, randomness)
            settings["vocabulary"] = vocabulary_of(self.target, self.assistant_model)
            if acceptor.run_ahead is not None:
                return RunAheadDrafter.of(self.assistant_model, acceptor.run_ahead, progress, **settings)
            length = draft_length_of(self.num_assistant_tokens, self.schedule, self.assistant_model, acceptor.name)
            return ModelDrafter(
                self.assistant_model, length, forwards=forwards, **self._kept(acceptor, call), **settings
            )
        if self.drafts_with_eagle3:
            length = draft_length_of(self.num_assistant_tokens, self.schedule, self.assistant_model, acceptor.name)
            settings = self._settings(call, processors, randomness) | self._kept(acceptor, call)
            return Eagle3Drafter(self.assistant_model, self.target, length, **settings)
        if call.batch == 1:
            return self._for_one(acceptor, call, call, randomness)
        drafter = PerRowDrafter(lambda row: self._for_one(acceptor, call.row(row), call, randomness), call.batch)
        if any(x.drafts_every_round for x in drafter.drafters):
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(drafter.drafters[0].generator).__name__} drafts from the states of one "
                f"sequence, but the batch has {call.batch} rows; call generate() for one prompt at a time"
            )
        return drafter

    def _tree_drafter(
        self,
        tree: TreeConfig,
        acceptor: Acceptor,
        call: Prepared,
        processors: LogitsProcessorList,
        randomness: Randomness,
    ) -> Drafter:
        length = node_count_of(tree, self.assistant_model, acceptor.name)
        settings = self._settings(call, processors, randomness)
        settings |= {"shape": tree, "keep_hidden": "draft_hidden" in acceptor.needs}
        if self.drafts_with_eagle3:
            return Eagle3TreeDrafter(self.assistant_model, self.target, length, **settings)
        vocabulary = vocabulary_of(self.target, self.assistant_model)
        return TreeDrafter(self.assistant_model, length, vocabulary=vocabulary, **settings)

    def _settings(self, call: Prepared, processors: LogitsProcessorList, randomness: Randomness) -> dict[str, Any]:
        shared = compat.shared_decisions(self.target)
        return {
            "processors": processors,
            "do_sample": call.config.do_sample,
            "max_length": call.config.max_length,
            "attention_mask": mask_of(call.ids, call.inputs),
            "randomness": randomness,
            "agree": shared and shared.agree,
        }

    def _kept(self, acceptor: Acceptor, call: Prepared) -> dict[str, Any]:
        return {
            # Without q there is neither a residual nor a ratio; greedily only some rules look at it.
            "keep_logits": call.wants_q or bool(acceptor.needs & {"draft_probs", "draft_or_point_mass"}),
            "keep_hidden": "draft_hidden" in acceptor.needs,
            "confidence": self.confidence,
        }

    def _for_one(self, acceptor: Acceptor, row: Prepared, call: Prepared, randomness: Randomness) -> GeneratorDrafter:
        """Return a drafter for one row of a call."""
        generator = self._generator(acceptor, row, randomness)
        if "draft_probs" in acceptor.needs and isinstance(generator, compat.DRAFTERS_WITHOUT_LOGITS):
            raise LossyValueError(
                f"the rule {acceptor.name!r} needs the draft's distribution, but {type(generator).__name__} has none; "
                "pass an `assistant_model`, or use a rule that reads the target alone, e.g. 'topk' or 'typical'"
            )
        if generator.requires_model_outputs and compat.quantises(cache := compat.cache_of(call.inputs)):
            raise LossyUnsupportedError(
                f"{type(generator).__name__} drafts from the target's states in every round, but a "
                f"{type(cache).__name__} has rounds in which no drafted token could be forgotten; use a dynamic cache"
            )
        wants_states = bool(call.config.return_dict_in_generate and call.config.output_hidden_states)
        return GeneratorDrafter(generator, acceptor, row.inputs, wants_states)

    def _generator(self, acceptor: Acceptor, call: Prepared, randomness: Randomness) -> CandidateGenerator:
        """Return what drafts for one sequence: the user's own, one for another tokenizer, or transformers' own."""
        drafter = self.candidate_generator
        if drafter is None and (self.translation is not None or self._encoded):
            settings = self._kept(acceptor, call) | self._settings(call, call.processors, randomness)
            length = draft_length_of(self.num_assistant_tokens, self.schedule)
            if self.translation is not None:
                return CrossTokenizerDrafter(
                    self.assistant_model, length, translation=self.translation, prompt=call.ids, **settings
                )
            vocabulary = vocabulary_of(self.target, self.assistant_model)
            return EncoderDecoderDrafter(self.assistant_model, length, call=call, vocabulary=vocabulary, **settings)
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


def _translation(
    target: PreTrainedModel, assistant: PreTrainedModel | None, tokenizer: Any, assistant_tokenizer: Any
) -> Translation | None:
    if assistant is None or assistant_tokenizer is None or isinstance(assistant, Eagle3):
        return None
    if tokenizer is None:
        raise LossyValueError("`assistant_tokenizer` needs the target's tokenizer to compare with; pass `tokenizer`")
    for name, value in (("tokenizer", tokenizer), ("assistant_tokenizer", assistant_tokenizer)):
        if not hasattr(value, "get_vocab"):
            raise LossyValueError(f"`{name}` has to be a tokenizer, but is {value!r}")
    if same_tokenizer(tokenizer, assistant_tokenizer):
        return None
    check_tokenizers(target, assistant, tokenizer, assistant_tokenizer)
    sizes = [model.config.get_text_config(decoder=True).vocab_size for model in (target, assistant)]
    return Translation(tokenizer, assistant_tokenizer, *sizes)


def _is_drafter(value: Any) -> bool:
    return isinstance(value, CandidateGenerator)
