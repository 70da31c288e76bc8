"""From one call of ``generate()`` to one run: which fields count, what is refused, which loop runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from .. import compat
from ..config import FIELDS, RunConfig, parse
from ..decoding.batch_layout import Frame, framed
from ..decoding.batching import BatchDecoding
from ..decoding.break_even import BreakEven, NoBreakEven
from ..decoding.loop import Decoding, Run
from ..decoding.outputs import GenerateLossyOutput
from ..decoding.row_by_row import Loop, OneByOne
from ..decoding.sequential import SequentialDecoding
from ..decoding.sequential_batching import SequentialBatchDecoding
from ..errors import LossyUnsupportedError, LossyValueError
from ..forwards.static import StaticDecoding, plan_of
from ..sampling import Randomness
from ..stats import LossyStats
from .drafter_choice import DrafterChoice
from .prepared import Prepared
from .refusals import check_apart, check_mode, check_prepared, check_together


@dataclass(frozen=True, eq=False)
class LossyCall:
    """One ``generate()`` call with a lossy mode, as the user wrote it.

    Attributes
    ----------
    model
        The target.
    config
        The rule and the run's settings.
    choice
        What is to draft.
    encoder_input
        What the target's encoder is to read, for an encoder-decoder model.
    """

    model: PreTrainedModel
    config: RunConfig
    choice: DrafterChoice
    encoder_input: Any = None

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
        config = parse(mode, field("lossy_config"), field("lossy_head"), device=compat.device_of(model))
        beams = explicit("num_beams")
        if beams is not None and not (isinstance(beams, int) and beams <= 1):
            raise LossyValueError(f"`num_beams` has to be 1 with `lossy_mode` {mode!r}, but is {beams!r}")
        if compat.replaces_decoding(model):
            raise LossyUnsupportedError(
                f"`lossy_mode` {mode!r} can't be used with {type(model).__name__}, which has a decoding loop of its own"
            )
        if (refusal := compat.refusal_of_adapter(model)) is not None:
            raise LossyUnsupportedError(f"`lossy_mode` {mode!r} can't be used with {refusal}")
        choice = DrafterChoice.take(model, kwargs, explicit, given.get("candidate_generator"))
        choice.check(config.acceptor)
        main = kwargs.get("inputs") if kwargs.get("inputs") is not None else kwargs.get(model.main_input_name)
        return cls(model, config, choice, main if model.config.is_encoder_decoder else None)

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
        compat.ready_for_rollback(model_kwargs.get("past_key_values"))
        call = Prepared(
            ids=input_ids,
            processors=logits_processor,
            stopping_criteria=stopping_criteria,
            config=generation_config,
            inputs=model_kwargs,
            streamer=streamer,
            tokenizer=tokenizer,
            encoder_input=self.encoder_input,
            synced_gpus=synced_gpus,
        )
        check_prepared(self.model, self.config.acceptor, call)
        check_mode(self.config, generation_config.do_sample)
        return self._loop(call).decode()

    def _loop(self, call: Prepared) -> Loop:
        acceptor, randomness = self.config.acceptor, Randomness(self.config.seed)
        if call.batch == 1:
            return self._single(call, randomness)
        self.choice.check_batch(call.batch)
        if self.choice.one_by_one:
            check_apart(acceptor.name, call)
            return OneByOne([partial(self._single, call.alone(i), randomness) for i in range(call.batch)], call)
        plan_of(self.model, self.config.compile, acceptor, self.choice, call)  # a static cache gives way
        frame = Frame.of(call.ids, call.padding)
        check_together(acceptor.name, call)
        processors = framed(call.processors, frame)
        drafter = self.choice.batch_drafter(acceptor, call, processors, randomness)
        loop = BatchDecoding if acceptor.run_ahead is None else SequentialBatchDecoding
        return loop(self._run(call, processors, drafter, randomness), call.ids, call.inputs, self._unseen(call), frame)

    def _single(self, call: Prepared, randomness: Randomness) -> Loop:
        acceptor, unseen = self.config.acceptor, self._unseen(call)
        plan = plan_of(self.model, self.config.compile, acceptor, self.choice, call)
        if plan is not None:
            drafter = self.choice.drafter(acceptor, call, call.processors, randomness, plan.model_drafter)
            run = self._run(call, call.processors, drafter, randomness)
            return StaticDecoding(run, call.ids, call.inputs, unseen, plan)
        drafter = self.choice.drafter(acceptor, call, call.processors, randomness)
        loop = Decoding if acceptor.run_ahead is None else SequentialDecoding
        return loop(self._run(call, call.processors, drafter, randomness), call.ids, call.inputs, unseen)

    @staticmethod
    def _unseen(call: Prepared) -> int | None:
        return compat.unseen_tokens(call.ids, call.inputs, call.config)

    def _break_even(self, drafter: Any) -> BreakEven:
        # A drafter that follows the target's states can't leave out a round.
        possible = self.config.break_even and not getattr(drafter, "requires_model_outputs", False)
        return BreakEven() if possible else NoBreakEven()

    def _run(self, call: Prepared, processors: LogitsProcessorList, drafter: Any, randomness: Randomness) -> Run:
        return Run(
            model=self.model,
            drafter=drafter,
            acceptor=self.config.acceptor,
            processors=processors,
            stopping_criteria=call.stopping_criteria,
            config=call.config,
            streamer=call.streamer,
            randomness=randomness,
            limits=self.config.limits.bind(call.tokenizer),
            break_even=self._break_even(drafter),
            synced=call.synced_gpus,
        )


def _lossy_fields(config: GenerationConfig | None) -> dict[str, Any]:
    values = {name: getattr(config, name, None) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not None}
