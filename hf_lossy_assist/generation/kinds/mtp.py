"""The target's own layer for multi-token prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from ...compat.mtp import several_or_sliding_mtp
from ...drafting.mtp import Mtp, mtp_of
from .base import Asked, register
from .eagle3 import Eagle3Kind


@register
class MtpKind(Eagle3Kind):
    """`use_mtp` asks for the target's MTP layer, which drafts as an EAGLE-3 head does."""

    head = Mtp

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        alone = asked.assistant is None and asked.generator is None and not asked.options.keys() - {"use_mtp"}
        if alone and asked.options and not several_or_sliding_mtp(asked.target):
            return cls(replace(asked, assistant=mtp_of(asked.target), options={}))
        return super().chosen(asked)
