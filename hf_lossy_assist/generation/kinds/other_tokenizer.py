"""A draft model with another tokenizer."""

from __future__ import annotations

from functools import cached_property
from typing import Self

from ...drafting import Drafter
from ...drafting.cross_tokenizer import TranslatedSource, Translation
from ...drafting.model import check_decoder, draft_runner
from ...drafting.vocabulary import check_tokenizers, vocabulary_sizes
from .base import Asked, Making, register
from .generators import PerRowKind


@register
class OtherTokenizer(PerRowKind):
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

    def for_row(self, making: Making) -> Drafter:
        runner = draft_runner(self.model, max_length=making.call.config.max_length)
        runner.chunk = making.call.config.prefill_chunk_size
        return making.chain(
            TranslatedSource(runner, self.translation, making.call.ids, making.mask, making.keep_hidden)
        )
