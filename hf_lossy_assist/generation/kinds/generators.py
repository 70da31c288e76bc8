"""Any `CandidateGenerator`: what drafts for one sequence, once for each row."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from transformers.generation.candidate_generator import CandidateGenerator

from ...compat.drafters import DRAFTERS_WITHOUT_LOGITS
from ...compat.multimodal import placeholders
from ...drafting import Drafter
from ...drafting.model import ModelDrafter
from ...drafting.per_row import GeneratorDrafter, PerRowDrafter, drafter_of, missing
from ...errors import LossyUnsupportedError, LossyValueError
from ..prepared import Prepared
from .base import Asked, Kind, Making, register


class GeneratorKind(Kind):
    """Drafts for each row with a generator of its own."""

    @abstractmethod
    def generator(self, making: Making, row: Prepared) -> CandidateGenerator:
        """Return what drafts for one row."""

    def make(self, making: Making) -> Drafter:
        call = making.call
        if call.batch == 1:
            return self._for_row(making, call)
        drafter = PerRowDrafter(lambda row: self._for_row(making, call.row(row)), call.batch)
        if any(x.drafts_every_round for x in drafter.drafters):
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(drafter.drafters[0].generator).__name__} drafts from the states of one "
                f"sequence, but the batch has {call.batch} rows; call generate() for one prompt at a time"
            )
        return drafter

    def _for_row(self, making: Making, row: Prepared) -> GeneratorDrafter:
        generator, rule = self.generator(making, row), making.config.rule
        if "draft_probs" in rule.needs and isinstance(generator, DRAFTERS_WITHOUT_LOGITS):
            raise missing("draft_probs", rule, type(generator).__name__)
        wants_states = bool(row.config.return_dict_in_generate and row.config.output_hidden_states)
        never = placeholders(self.asked.target, making.call.inputs)
        return drafter_of(generator, rule, row.inputs, wants_states, never)


@register
class OwnGenerator(GeneratorKind):
    """`candidate_generator` is a generator, or makes one for each row."""

    gives = frozenset({"q", "hidden"})  # some do

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return None if asked.generator is None else cls(asked)

    @property
    def title(self) -> str:
        return f"`candidate_generator` {type(self.asked.generator).__name__}"

    def check(self) -> None:
        if not isinstance(self.asked.generator, CandidateGenerator) and not callable(self.asked.generator):
            raise LossyValueError(
                "`candidate_generator` has to be a CandidateGenerator or a callable that returns one, but is "
                f"{self.asked.generator!r}"
            )

    def generator(self, making: Making, row: Prepared) -> CandidateGenerator:
        found = self.asked.generator
        if not isinstance(found, CandidateGenerator):
            found = found(
                input_ids=row.ids,
                generation_config=row.config,
                logits_processor=row.processors,
                model_kwargs=row.inputs,
            )
            if not isinstance(found, CandidateGenerator):
                raise LossyValueError(
                    f"`candidate_generator` has to return a CandidateGenerator, but returned {found!r}"
                )
        if isinstance(found, ModelDrafter):
            found.reset()  # it may have drafted for another prompt
        return found
