"""Which drafter a call has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import LogitsProcessorList, PreTrainedModel

from .. import compat
from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..errors import LossyUnsupportedError, LossyValueError
from ..prepared import Prepared
from ..sampling import Randomness
from . import ModelDrafter, RunningDrafter, check_draft_model, check_num_tokens, window_of
from .batches import Apart, BatchDrafter, Together

DrafterFactory = Callable[..., CandidateGenerator]


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
    """

    target: PreTrainedModel
    assistant_model: PreTrainedModel | None
    candidate_generator: CandidateGenerator | DrafterFactory | None
    num_assistant_tokens: int | str
    confidence: float | None
    schedule: str

    def check(self, acceptor: Acceptor, explicit: Callable[..., Any], assistant_tokenizer: Any) -> None:
        """Raise where nothing can draft for the rule; ``explicit(name)`` is a field of the call."""
        name = acceptor.name
        check_num_tokens(self.num_assistant_tokens)
        for option in ("assistant_early_exit", "use_mtp", "speculation_type"):
            if value := explicit(option):
                raise LossyUnsupportedError(
                    f"`{option}` {value!r} is not supported with `lossy_mode` {name!r} yet; leave it out and pass an "
                    "`assistant_model`, `prompt_lookup_num_tokens` or `candidate_generator`"
                )
        if self.assistant_model is None and acceptor.run_ahead is not None:
            raise LossyValueError(
                f"the rule {name!r} runs a head on the draft model's states; pass an `assistant_model`, and no "
                "`candidate_generator` or `prompt_lookup_num_tokens`"
            )
        acceptor.check_models(self.target, self.assistant_model)
        if self.candidate_generator is not None:
            if not _is_drafter(self.candidate_generator) and not callable(self.candidate_generator):
                raise LossyValueError(
                    "`candidate_generator` has to be a CandidateGenerator or a callable that returns one, but is "
                    f"{self.candidate_generator!r}"
                )
            return
        if self.assistant_model is None:
            if explicit("prompt_lookup_num_tokens") is None:
                raise LossyValueError(
                    f"`lossy_mode` {name!r} needs a drafter; pass `assistant_model`, `prompt_lookup_num_tokens` or "
                    "`candidate_generator`"
                )
            return
        if assistant_tokenizer is not None:
            raise LossyUnsupportedError(
                "`assistant_tokenizer` (a draft with another tokenizer) is not supported yet; leave it out and use "
                "an `assistant_model` with the target's tokenizer"
            )
        check_draft_model(self.target, self.assistant_model)

    @property
    def drafts_with_model(self) -> bool:
        """Whether the draft model drafts, and not the user's own drafter."""
        return self.assistant_model is not None and self.candidate_generator is None

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
        return self._checked(acceptor, self._given(call))

    def batch_drafter(
        self, acceptor: Acceptor, call: Prepared, processors: LogitsProcessorList, randomness: Randomness
    ) -> BatchDrafter:
        """Return the drafter for several rows."""
        if self.drafts_with_model:
            return Together(self._model_drafter(acceptor, call, processors, randomness))
        if _is_drafter(self.candidate_generator):
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(self.candidate_generator).__name__} drafts for one sequence, but the "
                f"batch has {call.batch} rows; pass a function that returns one, which is called once per row"
            )
        return Apart(lambda row: self._checked(acceptor, self._given(call.row(row))), call.batch)

    def _model_drafter(
        self,
        acceptor: Acceptor,
        call: Prepared,
        processors: LogitsProcessorList,
        randomness: Randomness,
        make: Callable[..., ModelDrafter] = ModelDrafter,
    ) -> ModelDrafter:
        settings = {
            "processors": processors,
            "do_sample": call.config.do_sample,
            "max_length": call.config.max_length,
            "attention_mask": call.inputs.get("attention_mask"),
            "randomness": randomness,
        }
        if acceptor.run_ahead is not None:
            return RunningDrafter.of(self.assistant_model, acceptor.run_ahead.head, **settings)
        return make(
            self.assistant_model,
            window_of(self.num_assistant_tokens, self.schedule),
            # Without q there is neither a residual nor a ratio; greedily only some rules look at it.
            keep_logits=call.config.do_sample or "draft_probs" in acceptor.needs,
            keep_hidden="draft_hidden" in acceptor.needs,
            confidence=self.confidence,
            **settings,
        )

    def _given(self, call: Prepared) -> CandidateGenerator:
        """Return the user's own drafter, or the one that transformers has for the configuration."""
        drafter = self.candidate_generator
        if drafter is None:
            return compat.stock_drafter(self.target, call.config, call.ids, call.processors, call.inputs)
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


def _is_drafter(value: Any) -> bool:
    return isinstance(value, CandidateGenerator)
