"""Turns one call of ``generate()`` into one run: reads its fields, checks it, and puts the loop together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from ..compat.caches import attention_windows, cache_of, ready_for_rollback
from ..compat.inputs import ROUTING
from ..compat.models import device_of, obstacle_in_adapter, replaces, replaces_decoding, shared_seed, unwrap
from ..compat.multimodal import ENCODED, PreparedInputs, other_inputs, prepared_inputs, reads_by_column
from ..compat.positions import FrequencySwitch, frequency_switch, learned_positions, positions_ahead
from ..compat.processors import observe, without_observers
from ..core.distributions import Randomness
from ..core.recorders import StatsRecorder
from ..core.statistics import LossyStats, joined
from ..core.texts import Texts
from ..decoding.loop import Decoding
from ..decoding.outputs import GenerateLossyOutput, OutputRecorder
from ..decoding.progress import Progress
from ..decoding.unverified import UnverifiedDecoding
from ..errors import LossyError, LossyUnsupportedError, LossyValueError, warn_once
from ..models.own_states import with_own_states
from ..models.processing import row_aligned
from ..models.target import Target, TargetReader
from .checks import check_certificate, check_decoding, check_grammar, check_mode, check_prepared, check_row_by_row
from .config import FIELDS, GivenFields, LossyConfig, guarded
from .drafter_choice import DRAFTERS, check_drafter, drafter_of
from .drafters.base import Kind, Making, Nothing
from .prepared import Prepared
from .runner_choice import choose_runners


@dataclass(frozen=True, eq=False)
class LossyCall:
    """One ``generate()`` call with a lossy mode, as the user wrote it.

    ``given`` says where a field's value came from. ``keywords`` are those that transformers knows, and
    ``encoder_input`` is the input of an encoder-decoder target's encoder.
    """

    model: PreTrainedModel
    config: LossyConfig
    kind: Kind  # who drafts
    given: GivenFields
    keywords: Mapping[str, Any] = field(default_factory=dict)
    encoder_input: Any = None

    @classmethod
    def from_keywords(
        cls, model: PreTrainedModel, kwargs: dict[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> LossyCall | None:
        """Remove our keywords from ``kwargs``; return None for an ordinary call.

        A field's value is the first of: keyword, ``defaults`` of an enabled model, ``generation_config`` argument, the
        model's own configuration and, for drafting, the assistant's. This happens before transformers merges them,
        because its defaults then look like the user's choice.
        """
        given = {name: kwargs.pop(name) for name in (*FIELDS, "candidate_generator") if name in kwargs}
        configs = [kwargs.get("generation_config"), model.generation_config]
        said = GivenFields(model, {**kwargs, **defaults, **given})
        # Settings of a lower level than the mode's belong to another mode.
        fields, level = {}, 0
        for level, source in enumerate(chain((given, defaults), map(_lossy_fields, configs))):  # noqa: B007
            fields = source | fields
            if "lossy_mode" in source:
                break
        mode = fields.get("lossy_mode")
        if mode is None:
            orphan = next((name for name in given if name != "lossy_mode" and given[name] is not None), None)
            if orphan is not None and "lossy_mode" not in given:
                raise LossyValueError(f"`{orphan}` needs a `lossy_mode`, but none is set; got {given[orphan]!r}")
            return None
        saved = getattr(configs[0], "lossy_config", None), getattr(configs[1], "lossy_config", None)
        if any(lower := (defaults.get("lossy_config"), *saved)):
            fields = guarded(fields, *lower)
        try:
            config = LossyConfig.from_fields(
                mode, fields.get("lossy_config"), fields.get("lossy_head"), device=device_of(model)
            )
        except LossyError as error:
            named = re.search(r"`(lossy_\w+)`", str(error))
            said.explain(error, named[1] if named else "lossy_config")
            raise
        try:
            check_decoding(mode, said)
            if replaces_decoding(model):
                raise LossyUnsupportedError(
                    f"`lossy_mode` {mode!r} can't be used with {type(model).__name__}, which has a decoding loop of "
                    "its own; leave the mode out, or pass `lossy_mode=None` where it is a default"
                )
            if (refusal := obstacle_in_adapter(model)) is not None:
                raise LossyUnsupportedError(f"`lossy_mode` {mode!r} can't be used with {refusal}")
            kind = drafter_of(model, kwargs, said, given.get("candidate_generator"), config)
            undrafted = isinstance(kind, Nothing) and kind.lengths.num_assistant_tokens != 0
            if undrafted and level > 1:  # the mode was saved with the model, but this call has no drafter
                warn_once(
                    f"`lossy_mode` {mode!r} is saved in the generation config, but nothing drafts, so texts are "
                    "decoded plainly; pass `assistant_model` or `prompt_lookup_num_tokens`, or enable the model with "
                    "one"
                )
                return None
            check_drafter(kind)
        except LossyError as error:
            said.explain(error)
            raise
        return cls(model, config, kind, said).with_inputs(kwargs)

    def with_inputs(self, kwargs: dict[str, Any]) -> LossyCall:
        """Return this call with the inputs among ``kwargs``, from which our keywords are removed."""
        saved = self.kind.asked.options.keys() - kwargs.keys()
        for name in (*FIELDS, *DRAFTERS, "assistant_tokenizer"):
            kwargs.pop(name, None)
        # For drafters in files, transformers would refuse what its own loop can't do: several texts of a prompt.
        kwargs |= dict.fromkeys(saved)
        if self.kind.reads:  # transformers refuses its own MTP for some targets
            kwargs["use_mtp"] = False
        main = kwargs.get("inputs") if kwargs.get("inputs") is not None else kwargs.get(self.model.main_input_name)
        encoder_input = main if self.model.config.is_encoder_decoder else None
        return replace(self, keywords=dict(kwargs), encoder_input=encoder_input)

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
        """Run the loop on the call that ``generate()`` has prepared."""
        tokenizer = model_kwargs.pop("tokenizer", None)
        for name in ("inputs_tensor", "assistant_model", "assistant_tokenizer", ROUTING):
            model_kwargs.pop(name, None)
        if not model_kwargs.get(ENCODED):  # transformers hands it on where there was nothing to encode, too
            model_kwargs.pop(ENCODED, None)
        processors = without_observers(logits_processor)
        call = Prepared(
            model=self.model,
            ids=input_ids,
            processors=with_own_states(f"`lossy_mode` {self.config.rule.name!r}", processors, input_ids.shape[1]),
            stopping_criteria=stopping_criteria,
            config=generation_config,
            inputs=model_kwargs,
            streamer=streamer,
            tokenizer=tokenizer,
            encoder_input=self.encoder_input,
            synced_gpus=synced_gpus,
            inspected=self.config.inspect,
        )
        ready_for_rollback(self.model, call.cache, input_ids.shape[1])
        check_prepared(self.config, self.kind, call)
        check_mode(self.config, generation_config.do_sample, self.kind.longest)
        if self.config.certificate is not None:
            check_certificate(self.config, self.kind, call, self.given)
        structured = check_grammar(self.config, call.processors, generation_config.do_sample)
        limits = self.config.limits.bind(call.tokenizer, structured)
        quotable = None if limits is None else call.quotable
        progress = Progress(
            call.config, call.stopping_criteria, call.ids, call.padding, limits, call.streamer, quotable
        )
        randomness = Randomness(shared_seed(self.model, self.config.seed))
        apart = call.batch > 1 and (self.kind.row_by_row or reads_by_column(call.inputs))
        if apart:
            check_row_by_row(self.config.rule.name, call)
            warn_once(
                f"the rows of a batch are decoded one after another with {type(self.model).__name__} and its drafter, "
                "which takes as long as calls for single prompts: an encoder, a recurrent state or positions by column "
                "keep rows from moving when they fall behind, and some drafters follow one text; plain batches may be "
                "faster"
            )
        if len(processors) < len(logits_processor):
            observe(logits_processor, self.model, call.ids, call.inputs)
        if (draft_inputs := self._draft_inputs(call)) is not None:
            call = replace(call, draft_inputs=draft_inputs)
        outputs = OutputRecorder(generation_config, call.batch, input_ids.shape[1])
        decoding = partial(self._decoding, progress, randomness, outputs)
        if apart:
            return _decode_row_by_row(lambda i: decoding(call.alone(i), row=i), progress, outputs, call)
        return decoding(call).decode()

    def _decoding(
        self, progress: Progress, randomness: Randomness, outputs: OutputRecorder, call: Prepared, row: int = 0
    ) -> Decoding:
        """Put a run together; ``row`` is the number of its first row in ``progress``."""
        acceptor, config = self.config.rule, call.config
        size = self.model.config.get_text_config(decoder=True).vocab_size
        texts, processors = Texts(call.ids, call.padding, row, size), call.processors
        switch = self._switch(call)
        if call.batch > 1:
            processors = row_aligned(processors, texts)
        making = Making(call, processors, randomness)
        runner, draft_runner = choose_runners(self.kind, making, switch)
        runner.chunk = config.prefill_chunk_size
        if config.output_attentions:
            outputs.windows = attention_windows(self.model, cache_of(call.inputs))
        reader = TargetReader(self.model, processors, acceptor, config.do_sample, randomness)
        making = replace(making, runner=draft_runner, returned=runner.returns_states)
        if (columns := learned_positions(self.model)) is not None:
            columns -= max(runner.before, positions_ahead(call.inputs.get("position_ids"), call.ids.shape[1]))
        kind = Decoding if acceptor.unverified_drafting is None else UnverifiedDecoding
        return kind(
            texts,
            target=Target(runner, reader, "logits" in outputs.wanted, switch, columns),
            drafter=self.kind.make(making),
            acceptor=acceptor,
            progress=progress,
            stats=StatsRecorder(acceptor.is_lossless(config.do_sample), call.batch, row),
            outputs=outputs,
            inspected=self.config.inspect,
            synced=call.synced_gpus,
        )

    def _draft_inputs(self, call: Prepared) -> PreparedInputs | None:
        """Return the inputs of a draft model that reads more than text, as stock assisted generation hands them on."""
        if not (own := self.kind.cached):
            return None
        draft = unwrap(own[0])
        others = other_inputs(draft, self.keywords)
        if not others and not replaces(draft, "generate"):  # else a model inside may read the text
            return None
        return prepared_inputs(draft, call.ids, call.mask, others, copies=call.config.num_return_sequences or 1)

    def _switch(self, call: Prepared) -> FrequencySwitch | None:
        """Return where a call's frequencies change with the width of a forward; warn where that ends drafting."""
        positions, prompt = call.inputs.get("position_ids"), call.ids.shape[1]
        switch = frequency_switch(self.model, positions, prompt, call.batch, call.config.max_length)
        if switch is not None and switch.with_every_token:
            warn_once(
                f"{type(self.model).__name__} chooses its rotary frequencies by the longest text of a forward, so a "
                f"text would differ from the target's own beyond {max(switch.at, 0)} tokens; it is decoded without "
                "drafts from there on" + (", since the rows of a batch have to grow together" if call.batch > 1 else "")
            )
        return switch


def _lossy_fields(config: GenerationConfig | None) -> dict[str, Any]:
    return {name: value for name in FIELDS if (value := getattr(config, name, None)) is not None}


def _decode_row_by_row(
    make: Callable[[int], Decoding], progress: Progress, outputs: OutputRecorder, call: Prepared
) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
    """Decode rows apart, for drafters that follow one sequence's states and for encoder-decoder models.

    ``make`` turns a row's number into its run; the runs share ``progress`` and ``outputs``. Rows are decoded one after
    another, or take turns: then the shortest text has the next round. Return the output of ``generate()``, and the
    statistics.
    """
    runs: dict[int, Decoding] = {}
    with ExitStack() as stack:
        while going_on := [i for i, ended in enumerate(progress.ended) if not ended]:
            i = min(going_on, key=progress.generated.__getitem__) if progress.take_turns else going_on[0]
            if i not in runs:
                runs[i] = make(i)
                stack.enter_context(runs[i].in_use())
            runs[i].round()
        longest = max(progress.generated)
        texts, stats = zip(*(runs[i].close(longest) for i in range(call.batch)), strict=True)
    sequences = pad_sequence([text[0] for text in texts], batch_first=True, padding_value=call.padding)
    total = joined(stats)
    if not outputs.as_dict:
        return sequences, total
    return outputs.finish(sequences, total, {"encoder_outputs": call.inputs.get("encoder_outputs")}), total
