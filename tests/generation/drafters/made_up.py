"""A kind of drafter that nobody needs: it repeats the text's newest token."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Self

from torch import Tensor, nn

from hf_lossy_assist.core.messages import Draft
from hf_lossy_assist.core.texts import Texts
from hf_lossy_assist.drafting import Drafter
from hf_lossy_assist.generation.drafters.base import Asked, Kind, Making


class EchoModel(nn.Module):
    """What a caller passes as `assistant_model`."""

    config = SimpleNamespace()


class EchoDrafter(Drafter):
    """Drafts the newest token again, so many times."""

    def __init__(self, count: int) -> None:
        self.count = count

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        return Draft(ids[:, -1:].repeat(1, max(0, min(self.count, max(remaining) - 1))))


class Echo(Kind):
    """`assistant_model` is an echo."""

    gives = frozenset({"static"})
    title = "an echo"

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return cls(asked) if isinstance(asked.assistant, EchoModel) else None

    def make(self, making: Making) -> Drafter:
        return EchoDrafter(self.lengths.num_assistant_tokens)
