"""Any `CandidateGenerator`: what drafts for one sequence, once for each row."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from transformers.generation.candidate_generator import CandidateGenerator

from ...compat.drafters import DRAFTERS_WITHOUT_LOGITS
from ...compat.multimodal import placeholders
from ...drafting import Drafter
from ...drafting.per_row import GeneratorDrafter, PerRowDrafter, missing
from ...errors import LossyUnsupportedError, LossyValueError
from .base import Asked, Kind, Making, register


class PerRowKind(Kind):
    """Drafts for each row with a drafter of its own."""

    @abstractmethod
    def for_row(self, making: Making) -> Drafter:
        """Return the drafter of one row, which is a call of its own."""

    def make(self, making: Making) -> Drafter:
        call = making.call
        if call.batch == 1:
            return self.for_row(making)
        return PerRowDrafter([self.for_row(making.for_row(call.row(row))) for row in range(call.batch)])


class GeneratorKind(PerRowKind):
    """Drafts for each row with a generator of its own."""

    @abstractmethod
    def generator(self, making: Making) -> CandidateGenerator:
        """Return what drafts for one row."""

    def for_row(self, making: Making) -> GeneratorDrafter:
        generator, rule, row = self.generator(making), making.config.rule, making.call
        whole = making.whole or row
        if "draft_probs" in rule.needs and isinstance(generator, DRAFTERS_WITHOUT_LOGITS):
            raise missing("draft_probs", rule, type(generator).__name__)
        if generator.requires_model_outputs and whole.batch > 1:
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(generator).__name__} drafts from the states of one sequence, but the "
                f"batch has {whole.batch} rows; call generate() for one prompt at a time"
            )
        wants_states = bool(row.config.return_dict_in_generate and row.config.output_hidden_states)
        never = placeholders(self.asked.target, whole.inputs)
        return GeneratorDrafter(generator, rule, row.inputs, wants_states, never)


@register
class OwnGenerator(GeneratorKind):
    """`candidate_generator` is a generator, or makes one for each row."""

    gives = frozenset({"q"})  # some do

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

    def generator(self, making: Making) -> CandidateGenerator:
        found, row = self.asked.generator, making.call
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
        return found
