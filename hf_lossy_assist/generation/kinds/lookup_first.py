"""Look-up first, and another drafter where the text does not repeat itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import nn
from transformers import PreTrainedModel

from ...compat.multimodal import placeholders
from ...drafting import Drafter
from ...drafting.lookup_first import LookupFirstDrafter, price_of
from .base import Asked, Kind, Making, StaticDraft, chosen, register

_OPTION = "prompt_lookup_num_tokens"


@register
@dataclass(frozen=True, eq=False)
class LookupFirst(Kind):
    """`prompt_lookup_num_tokens` beside an `assistant_model` or `use_mtp`."""

    inner: Kind = None
    remedy = "leave it out"

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        if asked.generator is not None or _OPTION not in asked.options:
            return None
        inner = chosen(asked.without(_OPTION))
        return None if inner is None or inner.follows_one_text else cls(asked, inner)

    @property
    def gives(self) -> frozenset[str]:
        return self.inner.gives - {"q", "hidden", "unverified"}

    @property
    def title(self) -> str:
        return f"`{_OPTION}`"

    @property
    def model(self) -> nn.Module | None:
        return self.inner.model

    @property
    def compares(self) -> bool:
        return self.inner.compares

    @property
    def cached(self) -> tuple[PreTrainedModel, ...]:
        return self.inner.cached

    @property
    def reads(self) -> tuple[int, ...]:
        return self.inner.reads

    @property
    def most(self) -> int | None:
        return self.inner.most

    @property
    def looked_up(self) -> int:
        return self.asked.options[_OPTION]

    def check(self) -> None:
        self.inner.check()

    def longest(self, constant: int | None) -> int | None:
        by_model = self.inner.longest(constant)
        return by_model and max(by_model, self.looked_up)

    def make(self, making: Making) -> Drafter:
        call = making.call
        price, never = price_of(self.model, self.asked.target), placeholders(call.model, call.inputs)
        return LookupFirstDrafter(self.inner.make(making), self.looked_up, price, never)

    def static(self, making: Making) -> StaticDraft | None:
        found = self.inner.static(making)
        return found and replace(found, reads_all=True)  # it has not read what was looked up
