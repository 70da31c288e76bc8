"""A draft model with another tokenizer."""

from __future__ import annotations

from functools import cached_property
from typing import Self

from transformers.generation.candidate_generator import CandidateGenerator

from ...drafting.cross_tokenizer import CrossTokenizerDrafter, Translation
from ...drafting.model import check_decoder
from ...drafting.vocabulary import check_tokenizers, vocabulary_sizes
from ..prepared import Prepared
from .base import Asked, Making, register
from .generators import GeneratorKind


@register
class OtherTokenizer(GeneratorKind):
    """`assistant_tokenizer` differs from `tokenizer`, so tokens are translated."""

    gives = frozenset({"q", "hidden", "stop", "static"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return None if asked.draft is None or asked.tokenizers is None else cls(asked)

    @cached_property
    def translation(self) -> Translation:
        target, draft = self.asked.target, self.asked.assistant
        check_tokenizers(target, draft, *self.asked.tokenizers)
        return Translation(*self.asked.tokenizers, *vocabulary_sizes(target, draft))

    def check(self) -> None:
        check_decoder(self.model)
        self.translation  # noqa: B018 - which refuses tokenizers that share nothing

    def generator(self, making: Making, row: Prepared) -> CandidateGenerator:
        own = making.for_row(row)
        return CrossTokenizerDrafter(self.model, translation=self.translation, prompt=row.ids, **own.chains)
