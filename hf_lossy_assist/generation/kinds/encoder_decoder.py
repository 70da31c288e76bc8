"""A draft model for a target with an encoder."""

from __future__ import annotations

from typing import Self

from transformers.generation.candidate_generator import CandidateGenerator

from ...drafting.encoder_decoder import EncoderDecoderDrafter, check_encoder_decoder_draft
from ...drafting.vocabulary import check_vocabularies, vocabulary_of
from ..prepared import Prepared
from .base import Asked, Making, register
from .generators import GeneratorKind


@register
class EncoderDecoder(GeneratorKind):
    """`assistant_model` reads the input, or the states, of the target's encoder."""

    gives = frozenset({"q", "hidden", "stop"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        encoded = asked.draft is not None and asked.target.config.is_encoder_decoder
        return cls(asked) if encoded and asked.tokenizers is None else None

    def check(self) -> None:
        check_vocabularies(self.asked.target, self.model)
        check_encoder_decoder_draft(self.asked.target, self.model)

    def generator(self, making: Making, row: Prepared) -> CandidateGenerator:
        own = making.for_row(row)
        more = {"ids": row.ids, "inputs": row.inputs, "encoder_input": row.encoder_input}
        vocabulary = vocabulary_of(self.asked.target, self.model)
        return EncoderDecoderDrafter(self.model, vocabulary=vocabulary, **own.chains | more)
