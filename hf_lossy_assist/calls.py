"""From one call of ``generate()`` to one run: which fields count, what is refused, which drafter is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from . import compat
from .break_even import BreakEven, NoBreakEven
from .compat import CandidateGenerator
from .config import FIELDS, RunConfig, parse
from .decoding import Decoding, Run
from .drafting import DEFAULT_NUM_TOKENS, ModelDrafter, RunningDrafter, check_draft_model, check_num_tokens, window_of
from .errors import LossyUnsupportedError, LossyValueError, warn_once
from .output import GenerateLossyOutput
from .sampling import Randomness
from .sequential import SequentialDecoding
from .stats import LossyStats

DrafterFactory = Callable[..., CandidateGenerator]


@dataclass(frozen=True, eq=False)
class LossyCall:
    """One ``generate()`` call with a lossy mode, as the user wrote it.

    Attributes
    ----------
    model
        The target.
    config
        The rule and the run's settings.
    assistant_model
        The draft model, or None.
    candidate_generator
        The user's own drafter or a factory for it, or None.
    num_assistant_tokens
        γ.
    confidence, schedule
        ``assistant_confidence_threshold`` and ``num_assistant_tokens_schedule`` where set explicitly.
    """

    model: PreTrainedModel
    config: RunConfig
    assistant_model: PreTrainedModel | None
    candidate_generator: CandidateGenerator | DrafterFactory | None
    num_assistant_tokens: int | str
    confidence: float | None
    schedule: str

    @classmethod
    def take(cls, model: PreTrainedModel, kwargs: dict[str, Any]) -> LossyCall | None:
        """Remove our keywords from ``kwargs``; return None where the call is an ordinary one.

        Fields count in the order keyword, ``generation_config`` argument, the model's own configuration, and
        for drafting the assistant's. This has to happen before transformers merges them, because afterwards
        its defaults can't be told from the user's choice.
        """
        given = {name: kwargs.pop(name) for name in (*FIELDS, "candidate_generator") if name in kwargs}
        configs = [kwargs.get("generation_config"), model.generation_config]

        def explicit(name: str, *more: Any) -> Any:
            values = [kwargs.get(name), *(getattr(config, name, None) for config in (*configs, *more))]
            return next((value for value in values if value is not None), None)

        # Where the mode comes from: settings of a lower level belong to another mode.
        sources = [given, *map(_lossy_fields, configs)]
        level = next((i for i, source in enumerate(sources) if "lossy_mode" in source), len(sources))

        def field(name: str) -> Any:
            return next((source[name] for source in sources[: level + 1] if name in source), None)

        mode = field("lossy_mode")
        if mode is None:
            orphan = next((name for name in given if name != "lossy_mode" and given[name] is not None), None)
            if orphan is not None and "lossy_mode" not in given:
                raise LossyValueError(f"`{orphan}` needs a `lossy_mode`, but none is set; got {given[orphan]!r}")
            return None
        config = parse(mode, field("lossy_config"), field("lossy_head"), device=model.device)
        if (beams := explicit("num_beams") or 1) > 1:
            raise LossyValueError(f"`num_beams` has to be 1 with `lossy_mode` {mode!r}, but is {beams}")
        if compat.replaces_decoding(model):
            raise LossyUnsupportedError(
                f"`lossy_mode` {mode!r} can't be used with {type(model).__name__}, which has a decoding loop of its own"
            )
        assistant = kwargs.pop("assistant_model", None)
        assistant_config = getattr(assistant, "generation_config", None)
        gamma = explicit("num_assistant_tokens", assistant_config)
        call = cls(
            model=model,
            config=config,
            assistant_model=assistant,
            candidate_generator=given.get("candidate_generator"),
            num_assistant_tokens=DEFAULT_NUM_TOKENS if gamma is None else gamma,
            confidence=explicit("assistant_confidence_threshold", assistant_config),
            schedule=explicit("num_assistant_tokens_schedule", assistant_config) or "constant",
        )
        call._check_drafter(explicit, kwargs.pop("assistant_tokenizer", None))
        return call

    def decode(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Run the loop on what ``generate()`` prepared."""
        tokenizer = model_kwargs.pop("tokenizer", None)
        for name in ("inputs_tensor", "assistant_model", "assistant_tokenizer"):
            model_kwargs.pop(name, None)
        acceptor = self.config.acceptor
        compat.ready_for_rollback(model_kwargs.get("past_key_values"))
        self._check_prepared(input_ids, logits_processor, generation_config, synced_gpus, model_kwargs)
        check_mode(self.config, generation_config.do_sample)
        randomness = Randomness(self.config.seed)
        drafter = self._drafter(input_ids, logits_processor, generation_config, model_kwargs, randomness)
        if "draft_probs" in acceptor.needs and isinstance(drafter, compat.DRAFTERS_WITHOUT_LOGITS):
            raise LossyValueError(
                f"the rule {acceptor.name!r} needs the draft's distribution, but {type(drafter).__name__} has none; "
                "pass an `assistant_model`, or use a rule that reads the target alone, e.g. 'topk' or 'typical'"
            )
        run = Run(
            model=self.model,
            drafter=drafter,
            acceptor=acceptor,
            processors=logits_processor,
            stopping_criteria=stopping_criteria,
            config=generation_config,
            streamer=streamer,
            randomness=randomness,
            limits=self.config.limits.bind(tokenizer),
            break_even=BreakEven() if self.config.break_even else NoBreakEven(),
        )
        unseen = compat.unseen_tokens(input_ids, model_kwargs, generation_config)
        loop = Decoding if acceptor.run_ahead is None else SequentialDecoding
        return loop(run, input_ids, model_kwargs, unseen).decode()

    def _drafter(
        self,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
        randomness: Randomness,
    ) -> CandidateGenerator:
        if self.candidate_generator is not None:
            return self._own_drafter(
                input_ids=input_ids, generation_config=config, logits_processor=processors, model_kwargs=model_kwargs
            )
        if self.assistant_model is None:
            return compat.stock_drafter(self.model, config, input_ids, processors, model_kwargs)
        settings = {
            "processors": processors,
            "do_sample": config.do_sample,
            "max_length": config.max_length,
            "attention_mask": model_kwargs.get("attention_mask"),
            "randomness": randomness,
        }
        acceptor = self.config.acceptor
        if acceptor.run_ahead is not None:
            return RunningDrafter.of(self.assistant_model, acceptor.run_ahead.head, **settings)
        return ModelDrafter(
            self.assistant_model,
            window_of(self.num_assistant_tokens, self.schedule),
            # Without q there is neither a residual nor a ratio; greedily only some rules look at it.
            keep_logits=config.do_sample or "draft_probs" in acceptor.needs,
            keep_hidden="draft_hidden" in acceptor.needs,
            confidence=self.confidence,
            **settings,
        )

    def _own_drafter(self, **context: Any) -> CandidateGenerator:
        drafter = self.candidate_generator
        if not _is_drafter(drafter):
            drafter = drafter(**context)
            if not _is_drafter(drafter):
                raise LossyValueError(
                    f"`candidate_generator` has to return a CandidateGenerator, but returned {drafter!r}"
                )
        if isinstance(drafter, ModelDrafter):
            drafter.reset()  # it may have drafted for another prompt
        return drafter

    def _check_drafter(self, explicit: Callable[..., Any], assistant_tokenizer: Any) -> None:
        name = self.config.acceptor.name
        check_num_tokens(self.num_assistant_tokens)
        for option in ("assistant_early_exit", "use_mtp", "speculation_type"):
            if value := explicit(option):
                raise LossyUnsupportedError(
                    f"`{option}` {value!r} is not supported with `lossy_mode` {name!r} yet; leave it out and pass an "
                    "`assistant_model`, `prompt_lookup_num_tokens` or `candidate_generator`"
                )
        if self.assistant_model is None and self.config.acceptor.run_ahead is not None:
            raise LossyValueError(
                f"the rule {name!r} runs a head on the draft model's states; pass an `assistant_model`, and no "
                "`candidate_generator` or `prompt_lookup_num_tokens`"
            )
        self.config.acceptor.check_models(self.model, self.assistant_model)
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
        check_draft_model(self.model, self.assistant_model)

    def _check_prepared(
        self,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        config: GenerationConfig,
        synced_gpus: bool,
        model_kwargs: dict[str, Any],
    ) -> None:
        mode = self.config.acceptor.name
        if self.model.config.is_encoder_decoder:
            raise LossyUnsupportedError(f"`lossy_mode` {mode!r} does not support encoder-decoder models yet")
        if input_ids.shape[0] != 1:
            raise LossyUnsupportedError(
                f"`lossy_mode` {mode!r} supports a batch of 1 so far, but the batch has {input_ids.shape[0]} rows "
                "(prompts × `num_return_sequences`); call generate() for one prompt at a time"
            )
        if input_ids.shape[1] == 0 or model_kwargs.get("inputs_embeds") is not None:
            raise LossyUnsupportedError(
                f"`lossy_mode` {mode!r} needs the prompt as `input_ids`, but got `inputs_embeds` or no tokens"
            )
        if not model_kwargs.get("use_cache", True):
            raise LossyValueError(f"`use_cache` has to be True with `lossy_mode` {mode!r}, but is False")
        for name in ("output_scores", "output_logits", "output_hidden_states", "output_attentions"):
            if self.config.acceptor.run_ahead is not None and getattr(config, name, False):
                raise LossyUnsupportedError(
                    f"`{name}` can't be used with `lossy_mode` {mode!r}, which commits tokens that the target has not "
                    "seen; leave it out"
                )
        if synced_gpus:
            raise LossyUnsupportedError(f"`synced_gpus` is not supported with `lossy_mode` {mode!r} yet")
        for processor in processors:
            if isinstance(processor, compat.STATEFUL_PROCESSORS):
                raise LossyUnsupportedError(
                    f"`lossy_mode` {mode!r} can't be used with {type(processor).__name__}, which keeps a state of its "
                    "own from token to token; leave it out"
                )
        if (refusal := compat.refusal_of_cache(self.model, model_kwargs.get("past_key_values"))) is not None:
            raise LossyUnsupportedError(f"`lossy_mode` {mode!r} has to roll the cache back, but {refusal}")


def _is_drafter(value: Any) -> bool:
    return isinstance(value, CandidateGenerator)


def _lossy_fields(config: GenerationConfig | None) -> dict[str, Any]:
    values = {name: getattr(config, name, None) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def check_mode(config: RunConfig, do_sample: bool) -> None:
    """Refuse a lossy setting where it must not be, and warn once of one that does nothing."""
    if config.require_lossless and not config.acceptor.is_lossless(do_sample):
        raise LossyValueError(
            f"`require_lossless` is set in `lossy_config`, but {config.acceptor!r} is lossy"
            + (" when sampling" if do_sample else " when decoding greedily")
        )
    if (warning := config.acceptor.check_mode(do_sample)) is not None:
        warn_once(warning)
