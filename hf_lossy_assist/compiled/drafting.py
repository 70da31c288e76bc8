"""Drafting in forwards of fixed shape."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..drafting import ModelDrafter
from ..drafting.window import Window
from .steps import Steps

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

    def read(self, candidate: Tensor) -> Tensor:
        forward, inputs = self.steps.prepare(candidate, self._cached, 1)
        with nullcontext() if self._tap is None else self._tap.over(0):
            outputs = forward(**inputs, return_dict=True)
        self.calls += 1
        self.tokens += candidate.shape[1] - self._cached
        self._cached = candidate.shape[1]
        return outputs.logits[:, -1:].to(device=candidate.device, dtype=torch.float32)
