"""Makes a call's drafter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import LogitsProcessorList

from .. import compat
from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..core.distributions import Randomness
from ..drafting import Drafter
from ..drafting.cross_tokenizer import CrossTokenizerDrafter
from ..drafting.draft_ends import ConfidenceStop, DraftLength, draft_length_of, fresh
from ..drafting.eagle3_drafter import Eagle3Drafter
from ..drafting.encoder_decoder import EncoderDecoderDrafter
from ..drafting.model import ModelDrafter, mask_of
from ..drafting.per_row import GeneratorDrafter, PerRowDrafter, drafter_of, missing
from ..drafting.tree import DrawnTreeDrafter, Eagle3DrawnTreeDrafter, Eagle3TreeDrafter, TreeDrafter
from ..drafting.tree_config import DrawnTreeConfig, TreeConfig
from ..drafting.unverified import UNVERIFIED_DRAFTERS
from ..drafting.vocabulary import vocabulary_of
from ..errors import LossyUnsupportedError, LossyValueError
from ..models.runner import ModelRunner
from .drafter_choice import DrafterChoice
from .prepared import Prepared

_TREES = {TreeConfig: TreeDrafter, DrawnTreeConfig: DrawnTreeDrafter}
_EAGLE3_TREES = {TreeConfig: Eagle3TreeDrafter, DrawnTreeConfig: Eagle3DrawnTreeDrafter}


@dataclass(frozen=True, eq=False)
class DrafterMaker:
    """Makes the drafter of a call with all its rows; the draft's logits go through ``processors``."""

    choice: DrafterChoice
    acceptor: Acceptor
    call: Prepared
    processors: LogitsProcessorList
    randomness: Randomness

    def drafter(
        self,
        runner: Callable[[], ModelRunner] | None = None,
        tree: TreeConfig | DrawnTreeConfig | None = None,
    ) -> Drafter:
        """Return the call's drafter; ``runner`` makes the draft model's runner, None for the drafter's own."""
        choice, acceptor = self.choice, self.acceptor
        if tree is not None:
            return self._tree_drafter(tree)
        if choice.drafts_with_model:
            settings = self._settings(self.call, self.processors)
            settings["vocabulary"] = vocabulary_of(choice.target, choice.assistant_model)
            if acceptor.unverified_drafting is not None:
                head = acceptor.unverified_drafting.head
                return UNVERIFIED_DRAFTERS[head.config.position](choice.assistant_model, head, **settings)
            return ModelDrafter(choice.assistant_model, self._length(), runner=runner, **self._kept(), **settings)
        if choice.drafts_with_eagle3:
            settings = self._settings(self.call, self.processors) | self._kept()
            return Eagle3Drafter(choice.assistant_model, choice.target, self._length(), **settings)
        if self.call.batch == 1:
            return self._for_one(self.call)
        drafter = PerRowDrafter(lambda row: self._for_one(self.call.row(row)), self.call.batch)
        if any(x.drafts_every_round for x in drafter.drafters):
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(drafter.drafters[0].generator).__name__} drafts from the states of one "
                f"sequence, but the batch has {self.call.batch} rows; call generate() for one prompt at a time"
            )
        return drafter

    def _tree_drafter(self, tree: TreeConfig | DrawnTreeConfig) -> Drafter:
        choice = self.choice
        settings = self._settings(self.call, self.processors)
        settings |= {"shape": tree, "keep_hidden": "draft_hidden" in self.acceptor.needs}
        if choice.drafts_with_eagle3:
            kind = _EAGLE3_TREES[type(tree)]
            return kind(choice.assistant_model, choice.target, tree.depth, **settings)
        vocabulary = vocabulary_of(choice.target, choice.assistant_model)
        return _TREES[type(tree)](choice.assistant_model, tree.depth, vocabulary=vocabulary, **settings)

    def _length(self) -> DraftLength:
        return draft_length_of(self.choice.num_assistant_tokens, self.choice.schedule)

    def _settings(self, call: Prepared, processors: LogitsProcessorList) -> dict[str, Any]:
        return {
            "processors": processors,
            "do_sample": call.config.do_sample,
            "max_length": call.config.max_length,
            "attention_mask": mask_of(call.ids, call.inputs),
            "randomness": self.randomness,
        }

    def _kept(self) -> dict[str, Any]:
        choice = self.choice
        stop = fresh(choice.stop) if not choice.confidence else ConfidenceStop(choice.confidence)
        return {
            # Residuals and ratios need q; in greedy decoding only some rules read it.
            "keep_logits": self.call.wants_q or bool(self.acceptor.needs & {"draft_probs", "draft_or_point_mass"}),
            "keep_hidden": "draft_hidden" in self.acceptor.needs or (stop is not None and stop.reads_states),
            "stop": stop,
        }

    def _for_one(self, row: Prepared) -> GeneratorDrafter:
        generator = self._generator(row)
        if "draft_probs" in self.acceptor.needs and isinstance(generator, compat.DRAFTERS_WITHOUT_LOGITS):
            raise missing("draft_probs", self.acceptor, generator)
        if generator.requires_model_outputs and compat.quantises(cache := compat.cache_of(self.call.inputs)):
            raise LossyUnsupportedError(
                f"{type(generator).__name__} drafts from the target's states in every round, but a "
                f"{type(cache).__name__} can't forget drafted tokens in some rounds; use a dynamic cache"
            )
        wants_states = bool(self.call.config.return_dict_in_generate and self.call.config.output_hidden_states)
        return drafter_of(generator, self.acceptor, row.inputs, wants_states)

    def _generator(self, row: Prepared) -> CandidateGenerator:
        """Return the drafter for one sequence: the user's own, one for another tokenizer, or transformers' own."""
        choice = self.choice
        drafter = choice.candidate_generator
        if drafter is None and (choice.translation is not None or choice.encoded):
            settings = self._kept() | self._settings(row, row.processors)
            length = self._length()
            if choice.translation is not None:
                return CrossTokenizerDrafter(
                    choice.assistant_model, length, translation=choice.translation, prompt=row.ids, **settings
                )
            vocabulary = vocabulary_of(choice.target, choice.assistant_model)
            settings |= {"ids": row.ids, "inputs": row.inputs, "encoder_input": row.encoder_input}
            return EncoderDecoderDrafter(choice.assistant_model, length, vocabulary=vocabulary, **settings)
        if drafter is None:
            config = copy.deepcopy(row.config)
            config.update(**choice.options, assistant_early_exit=None, num_assistant_tokens=choice.num_assistant_tokens)
            return compat.transformers_drafter(
                choice.target, config, row.ids, row.processors, row.inputs, choice.assistant_model
            )
        if not isinstance(drafter, CandidateGenerator):
            drafter = drafter(
                input_ids=row.ids,
                generation_config=row.config,
                logits_processor=row.processors,
                model_kwargs=row.inputs,
            )
            if not isinstance(drafter, CandidateGenerator):
                raise LossyValueError(
                    f"`candidate_generator` has to return a CandidateGenerator, but returned {drafter!r}"
                )
        if isinstance(drafter, ModelDrafter):
            drafter.reset()  # it may have drafted for another prompt
        return drafter
