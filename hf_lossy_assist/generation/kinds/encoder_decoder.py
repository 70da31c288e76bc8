"""A draft model for a target with an encoder."""

from __future__ import annotations

from typing import Self

from ...drafting import Drafter
from ...drafting.model import ModelSource, check_encoder_decoder_draft, encoded_runner
from ...drafting.vocabulary import check_vocabularies, vocabulary_of
from .base import Asked, Making, register
from .generators import PerRowKind


@register
class EncoderDecoder(PerRowKind):
    """`assistant_model` reads the input, or the states, of the target's encoder."""

    gives = frozenset({"q", "hidden", "stop"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        encoded = asked.draft is not None and asked.target.config.is_encoder_decoder
        return cls(asked) if encoded and asked.tokenizers is None else None

    def check(self) -> None:
        check_vocabularies(self.asked.target, self.model)
        check_encoder_decoder_draft(self.asked.target, self.model)

    def for_row(self, making: Making) -> Drafter:
        row = making.call
        runner = encoded_runner(self.model, row.ids, row.inputs, row.encoder_input)
        runner.chunk = row.config.prefill_chunk_size
        own = vocabulary_of(self.asked.target, self.model)
        return making.chain(ModelSource(runner, own, making.keep_hidden))
