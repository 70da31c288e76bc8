"""Prompt look-up: the text itself drafts."""

from __future__ import annotations

from typing import Self

from transformers.generation.candidate_generator import CandidateGenerator

from .base import Asked, Making, register
from .generators import GeneratorKind
from .transformers_own import own_drafter


@register
class Lookup(GeneratorKind):
    """`prompt_lookup_num_tokens` alone: transformers' own drafter."""

    gives = frozenset({"static"})

    @property
    def title(self) -> str:
        return "`prompt_lookup_num_tokens`"

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        alone = asked.assistant is None and asked.generator is None
        return cls(asked) if alone and asked.options.keys() == {"prompt_lookup_num_tokens"} else None

    def longest(self, constant: int | None) -> int:
        return self.asked.options["prompt_lookup_num_tokens"]

    def generator(self, making: Making) -> CandidateGenerator:
        return own_drafter(self, making)
