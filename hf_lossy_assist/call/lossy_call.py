"""From one call of ``generate()`` to one run: which fields count, what is refused, which loop runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from .. import compat
from ..config import FIELDS, RunConfig, parse
from ..decoding.batch_layout import BatchLayout, row_aligned
from ..decoding.break_even import AlwaysDraft, BreakEven, speed_comparison
from ..decoding.loop import Decoding, Run
from ..decoding.outputs import GenerateLossyOutput, OutputRecorder
from ..decoding.progress import Progress, Stopping
from ..decoding.recorders import StatsRecorder
from ..decoding.row_by_row import RowByRow
from ..decoding.tree_loop import TreeDecoding
from ..drafting import Drafter
from ..errors import LossyUnsupportedError, LossyValueError, warn_once
from ..inspection.inspector import Inspector
from ..sampling import Randomness
from ..stats import LossyStats
from ..verification.target import Target, Verifier
from ..verification.tree_target import TreeTarget, TreeVerifier
from .drafter_choice import DrafterChoice
from .drafter_making import DrafterMaker
from .forwards_choice import choose_forwards
from .prepared import Prepared
from .refusals import (
    check_certificate,
    check_decoding,
    check_mode,
    check_own_cache,
    check_prepared,
    check_row_by_row,
    check_together,
    check_tree,
)


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
    def take(
        cls, model: PreTrainedModel, kwargs: dict[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> LossyCall | None:
        """Remove our keywords from ``kwargs``; return None where the call is an ordinary one.

        Fields count in the order keyword, ``defaults`` of an enabled model, ``generation_config`` argument, the model's
        own configuration, and for drafting the assistant's. This has to happen before transformers merges them,
        because afterwards its defaults can't be told from the user's choice.
        """
        given = {name: kwargs.pop(name) for name in (*FIELDS, "candidate_generator") if name in kwargs}
        configs = [kwargs.get("generation_config"), model.generation_config]

        def explicit(name: str, *more: Any) -> Any:
            values = [kwargs.get(name), *(getattr(config, name, None) for config in (*configs, *more))]
            return next((value for value in values if value is not None), None)

        # Where the mode comes from: settings of a lower level belong to another mode.
        sources = [given, defaults, *map(_lossy_fields, configs)]
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
        check_decoding(mode, explicit)
        if compat.replaces_decoding(model):
            raise LossyUnsupportedError(
                f"`lossy_mode` {mode!r} can't be used with {type(model).__name__}, which has a decoding loop of its own"
            )
        if (refusal := compat.refusal_of_adapter(model)) is not None:
            raise LossyUnsupportedError(f"`lossy_mode` {mode!r} can't be used with {refusal}")
        choice = DrafterChoice.take(model, kwargs, explicit, given.get("candidate_generator"), config.stop_drafting)
        if choice.is_empty and level > 1:  # saved with the model, which is used without its drafter here
            warn_once(
                f"`lossy_mode` {mode!r} is saved in the generation config, but nothing drafts, so texts are decoded "
                "plainly; pass `assistant_model` or `prompt_lookup_num_tokens`, or enable the model with one"
            )
            return None
        choice.check(config.acceptor)
        if config.tree is not None:
            choice.check_tree(config.acceptor)
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
        compat.ready_for_rollback(compat.cache_of(model_kwargs))
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
            inspected=self.config.inspect,
        )
        if self.config.tree is not None:
            check_tree(self.model, self.choice.assistant_model, self.config, call)
        check_prepared(self.model, self.config.acceptor, call)
        check_mode(self.config, generation_config.do_sample, self.choice.longest)
        check_certificate(self.config, self.model, self.choice, generation_config)
        stopping = Stopping(call.config, call.stopping_criteria, call.ids, call.padding)
        randomness = Randomness(compat.shared_seed(self.model, self.config.seed))
        if call.batch == 1:
            return self._decoding(call, stopping, randomness).decode()
        self.choice.check_batch(call.batch)
        check_own_cache(self.config.acceptor.name, call)
        if self.choice.row_by_row or compat.quantises(compat.cache_of(call.inputs)):
            check_row_by_row(self.config.acceptor.name, call)
            return RowByRow(lambda i: self._decoding(call.alone(i), stopping, randomness, i), stopping, call).decode()
        return self._decoding(call, stopping, randomness).decode()

    def _decoding(self, call: Prepared, stopping: Stopping, randomness: Randomness, row: int = 0) -> Decoding:
        """Put a run together; ``row`` is the first of its rows, as ``stopping`` numbers them."""
        acceptor, config = self.config.acceptor, call.config
        layout, processors = BatchLayout.of(call.ids, call.padding), call.processors
        forwards = choose_forwards(self.model, self.config.compile, acceptor, self.choice, call)
        if call.batch > 1:
            check_together(acceptor.name, call)
            processors = row_aligned(processors, layout)
        outputs = OutputRecorder(config, call.batch, call.ids.shape[1])
        stats = StatsRecorder(acceptor.is_lossless(config.do_sample), call.batch)
        progress = Progress(stopping, self.config.limits.bind(call.tokenizer), stats, call.streamer, row)
        keep_raw = "logits" in outputs.wanted
        tree = self.config.tree
        kinds = (Verifier, Target, Decoding) if tree is None else (TreeVerifier, TreeTarget, TreeDecoding)
        verifier = kinds[0](self.model, processors, acceptor, config.do_sample, randomness, keep_raw)
        drafter = DrafterMaker(self.choice, acceptor, call, processors, randomness).drafter(
            progress, forwards.draft, tree
        )
        run = Run(
            target=kinds[1](forwards.target, verifier),
            drafter=drafter,
            acceptor=acceptor,
            progress=progress,
            outputs=outputs,
            break_even=self._break_even(drafter, call),
            inspector=Inspector(acceptor) if self.config.inspect else None,
            synced=call.synced_gpus,
        )
        return kinds[2](run, call.ids, layout)

    def _break_even(self, drafter: Drafter, call: Prepared) -> BreakEven | AlwaysDraft:
        if not self.config.break_even or drafter.drafts_every_round:
            return AlwaysDraft()
        situation = (*self.choice.identity, str(call.ids.device), self.config.acceptor.name, call.batch)
        return BreakEven(speed_comparison(self.model, *situation), compat.shared_clock(self.model))


def _lossy_fields(config: GenerationConfig | None) -> dict[str, Any]:
    values = {name: getattr(config, name, None) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not None}
