"""transformers' own drafters of special kinds of models: its DFlash, and MTP of several layers."""

from __future__ import annotations

import copy
from typing import Any, Self

from transformers.generation.candidate_generator import CandidateGenerator

from ...compat.drafters import transformers_drafter
from ...compat.models import has_recurrent_state
from ...compat.mtp import several_or_sliding_mtp
from ...errors import LossyUnsupportedError, LossyValueError
from .base import Asked, Making, register
from .generators import GeneratorKind

OPTIONS = ("prompt_lookup_num_tokens", "use_mtp", "speculation_type")
"""Fields by which transformers' ``generate()`` chooses one of its own drafters."""


def own_drafter(kind: GeneratorKind, making: Making, model: Any = None) -> CandidateGenerator:
    """Return the drafter that transformers' assisted generation would build for a row."""
    row = making.call
    asked, config = kind.asked, copy.deepcopy(row.config)
    config.update(**dict.fromkeys(OPTIONS) | dict(asked.options))
    config.update(assistant_early_exit=None, num_assistant_tokens=making.lengths.num_assistant_tokens)
    return transformers_drafter(asked.target, config, row.ids, row.processors, row.inputs, model)


@register
class TransformersOwn(GeneratorKind):
    """`speculation_type`, or `use_mtp` beside more than one layer of it, asks for a drafter of transformers."""

    gives = frozenset({"q"})
    follows_one_text = True

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        special = asked.generator is None and not {"speculation_type", "use_mtp"}.isdisjoint(asked.options)
        by_layer = asked.assistant is None and "speculation_type" not in asked.options
        ours = by_layer and special and not several_or_sliding_mtp(asked.target)
        return cls(asked) if special and not ours else None

    def check(self) -> None:
        options, target = self.asked.options, self.asked.target
        if options.get("speculation_type") and self.asked.assistant is None:
            raise LossyValueError(
                f"`speculation_type` {options['speculation_type']!r} needs its draft model as `assistant_model`"
            )
        if has_recurrent_state(target):
            raise LossyUnsupportedError(
                f"transformers' own drafter can't follow {type(target).__name__}, whose recurrent state has to be "
                "read again; pass an `assistant_model` without `use_mtp` and `speculation_type`, or `use_mtp` alone"
            )
        if options.get("prompt_lookup_num_tokens"):
            raise LossyUnsupportedError(
                "`prompt_lookup_num_tokens` drafts in the rounds that a draft model leaves out, but this drafter reads "
                "the target's states of every round; leave out either"
            )

    def generator(self, making: Making) -> CandidateGenerator:
        return own_drafter(self, making, self.asked.assistant)
