"""Drafting in forwards of fixed shape."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...drafting import ModelDrafter
from ...drafting.draft_length import Window
from .forwards import Steps

WIDTHS = (1, 2)
"""A round's first forward is over two tokens, all others over one."""


class StaticDrafter(ModelDrafter):
    """Proposes tokens as :class:`~hf_lossy_assist.drafting.ModelDrafter` does, on a static cache.

    Parameters
    ----------
    model, window, **settings
        As for :class:`~hf_lossy_assist.drafting.ModelDrafter`.
    steps
        The draft model's forwards.
    """

    def __init__(self, model: PreTrainedModel, window: int | Window, *, steps: Steps, **settings: Any) -> None:
        self.steps = steps
        super().__init__(model, window, **settings)

    def reset(self) -> None:
        super().reset()
        self.steps.slots.clear()

    def forget_after(self, length: int) -> None:
        # The cache lacks one token or, if all were kept, two. Where it lacks one, another is read again: one shape.
        self._cached = max(0, min(self._cached, length - 1))

    def _forward(self, candidate: Tensor) -> Any:
        forward, inputs = self.steps.prepare(candidate, self._cached, 1)
        return forward(**inputs, return_dict=True)
