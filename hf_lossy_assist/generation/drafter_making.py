"""Makes a call's drafter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from transformers import LogitsProcessorList

from .. import compat
from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..core.distributions import Randomness
from ..drafting import Drafter, NoDrafter
from ..drafting.cross_tokenizer import CrossTokenizerDrafter
from ..drafting.dflash import DFlash
from ..drafting.dflash_drafter import DFlashDrafter
from ..drafting.draft_ends import ConfidenceStop, draft_length_of, fresh
from ..drafting.eagle3 import Eagle3
from ..drafting.eagle3_drafter import Eagle3Drafter
from ..drafting.encoder_decoder import EncoderDecoderDrafter
from ..drafting.lookup_first import LookupFirstDrafter, price_of
from ..drafting.model import ModelDrafter, mask_of
from ..drafting.mtp import Mtp
from ..drafting.per_row import GeneratorDrafter, PerRowDrafter, drafter_of, missing
from ..drafting.shared_keys import SharedKeysDrafter
from ..drafting.tree import Eagle3TreeDrafter, TreeConfig, TreeDrafter
from ..drafting.unverified import UNVERIFIED_DRAFTERS
from ..drafting.vocabulary import vocabulary_of
from ..errors import LossyUnsupportedError, LossyValueError
from ..models.runner import ModelRunner
from .drafter_choice import TRANSFORMERS_OPTIONS, DrafterChoice
from .prepared import Prepared

_OF_STATES = {Eagle3: Eagle3Drafter, Mtp: Eagle3Drafter, DFlash: DFlashDrafter}


def make_drafter(
    choice: DrafterChoice,
    acceptor: Acceptor,
    call: Prepared,
    processors: LogitsProcessorList,
    randomness: Randomness,
    runner: Callable[[], ModelRunner] | None = None,
    tree: TreeConfig | None = None,
    returned: bool = False,
) -> Drafter:
    """Return the drafter of a call with all its rows; the draft's logits go through ``processors``.

    ``runner`` makes the draft model's runner, None for the drafter's own. ``returned`` says that the target's outputs
    have the states that a head on them reads.
    """
    if choice.num_assistant_tokens == 0:
        return NoDrafter()
    model, settings = choice.assistant_model, _settings(call, processors, randomness)
    if tree is not None:
        settings |= {"shape": tree, "keep_hidden": "draft_hidden" in acceptor.needs}
        if choice.drafts_from_states:
            settings |= {"returned": returned, "runner": runner}
            return Eagle3TreeDrafter(model, choice.target, tree.depth, **settings)
        settings |= {"vocabulary": vocabulary_of(choice.target, model), "runner": runner}
        return TreeDrafter(model, tree.depth, **settings)
    length = draft_length_of(choice.num_assistant_tokens, choice.schedule)
    if choice.drafts_with_model:
        settings["vocabulary"] = vocabulary_of(choice.target, model)
        settings["inputs"] = call.draft_inputs
        if acceptor.unverified_drafting is not None:
            head = acceptor.unverified_drafting.head
            return UNVERIFIED_DRAFTERS[head.config.position](model, head, **settings)
        return ModelDrafter(model, length, runner=runner, **_kept(choice, acceptor, call), **settings)
    if choice.drafts_from_states:
        settings |= _kept(choice, acceptor, call) | {"returned": returned, "runner": runner}
        return _OF_STATES[type(model)](model, choice.target, length, **settings)
    if choice.drafts_with_shared_keys:
        return SharedKeysDrafter(model, choice.target, length, **_kept(choice, acceptor, call), **settings)

    def for_row(row: Prepared) -> GeneratorDrafter:
        return _for_one(choice, acceptor, row, randomness, call.inputs)

    if call.batch == 1:
        return for_row(call)
    drafter = PerRowDrafter(lambda row: for_row(call.row(row)), call.batch)
    if any(x.drafts_every_round for x in drafter.drafters):
        raise LossyUnsupportedError(
            f"`candidate_generator` {type(drafter.drafters[0].generator).__name__} drafts from the states of one "
            f"sequence, but the batch has {call.batch} rows; call generate() for one prompt at a time"
        )
    return drafter


def look_up_first(drafter: Drafter, choice: DrafterChoice, call: Prepared) -> Drafter:
    """Return a drafter that asks the call's text before ``drafter``."""
    price = price_of(choice.assistant_model, choice.target)
    return LookupFirstDrafter(drafter, choice.looked_up, price, compat.placeholders(call.model, call.inputs))


def _settings(call: Prepared, processors: LogitsProcessorList, randomness: Randomness) -> dict[str, Any]:
    return {
        "never": compat.placeholders(call.model, call.inputs),
        "processors": processors,
        "do_sample": call.config.do_sample,
        "max_length": call.config.max_length,
        "attention_mask": mask_of(call.ids, call.inputs),
        "randomness": randomness,
        "chunk": call.config.prefill_chunk_size,
    }


def _kept(choice: DrafterChoice, acceptor: Acceptor, call: Prepared) -> dict[str, Any]:
    stop = fresh(choice.stop) if not choice.confidence else ConfidenceStop(choice.confidence)
    wants_q = call.config.do_sample or call.inspected
    return {
        # Residuals and ratios need q; in greedy decoding only some rules read it.
        "keep_logits": wants_q or bool(acceptor.needs & {"draft_probs", "draft_or_point_mass"}),
        "keep_hidden": "draft_hidden" in acceptor.needs,
        "stop": stop,
    }


def _for_one(
    choice: DrafterChoice, acceptor: Acceptor, row: Prepared, randomness: Randomness, inputs: Mapping[str, Any]
) -> GeneratorDrafter:
    """Return the drafter for one sequence of a call whose target has ``inputs``."""
    generator = _generator(choice, acceptor, row, randomness)
    if "draft_probs" in acceptor.needs and isinstance(generator, compat.DRAFTERS_WITHOUT_LOGITS):
        raise missing("draft_probs", acceptor, type(generator).__name__)
    wants_states = bool(row.config.return_dict_in_generate and row.config.output_hidden_states)
    never = compat.placeholders(choice.target, inputs)
    return drafter_of(generator, acceptor, row.inputs, wants_states, never)


def _generator(choice: DrafterChoice, acceptor: Acceptor, row: Prepared, randomness: Randomness) -> CandidateGenerator:
    """Return the drafter for one sequence: the user's own, one for another tokenizer, or transformers' own."""
    drafter, model = choice.candidate_generator, choice.assistant_model
    if drafter is None and (choice.translation is not None or choice.encoded):
        settings = _kept(choice, acceptor, row) | _settings(row, row.processors, randomness)
        length = draft_length_of(choice.num_assistant_tokens, choice.schedule)
        if choice.translation is not None:
            return CrossTokenizerDrafter(model, length, translation=choice.translation, prompt=row.ids, **settings)
        settings |= {"ids": row.ids, "inputs": row.inputs, "encoder_input": row.encoder_input}
        return EncoderDecoderDrafter(model, length, vocabulary=vocabulary_of(choice.target, model), **settings)
    if drafter is None:
        config = copy.deepcopy(row.config)
        config.update(**dict.fromkeys(TRANSFORMERS_OPTIONS) | choice.options)
        config.update(assistant_early_exit=None, num_assistant_tokens=choice.num_assistant_tokens)
        return compat.transformers_drafter(choice.target, config, row.ids, row.processors, row.inputs, model)
    if not isinstance(drafter, CandidateGenerator):
        drafter = drafter(
            input_ids=row.ids, generation_config=row.config, logits_processor=row.processors, model_kwargs=row.inputs
        )
        if not isinstance(drafter, CandidateGenerator):
            raise LossyValueError(f"`candidate_generator` has to return a CandidateGenerator, but returned {drafter!r}")
    if isinstance(drafter, ModelDrafter):
        drafter.reset()  # it may have drafted for another prompt
    return drafter
