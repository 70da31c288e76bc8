"""One step of an engine as vLLM's model runner V2 lays it out: a row of logits for each drafted token and one more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .rounds import EngineStep


@dataclass(frozen=True, eq=False)
class Rows:
    """Flat rows of a step: each request's newest committed token, then its drafted ones, as the target read them."""

    ends: Tensor  # (B + 1,) where each request's rows start, and the end
    counts: Sequence[int]  # (B,) how many tokens each request was given
    inputs: Tensor  # (T + B,) the tokens that were read; negative where a draft ends earlier
    positions: Tensor  # (T + B,) their positions
    slots: Tensor  # (B,) the requests' places in tables that outlive a step

    def drafted(self) -> tuple[Tensor, Tensor]:
        """Return ``(T,)`` the row that predicts each drafted token, and the number of its request."""
        total = sum(self.counts)
        numbers = torch.arange(len(self.counts), device=self.ends.device)
        owners = numbers.repeat_interleave(self.ends.diff() - 1, output_size=total)
        return torch.arange(total, device=owners.device) + owners, owners

    def draft_probs(self, logits: Tensor, temperatures: Tensor) -> Tensor:
        """Return q ``(T, V)`` from a table of the drafts' logits ``(N, γ, V)`` before temperature.

        Drafts of greedy requests, whose temperature is 0, have q at a temperature of 1.
        """
        rows, owners = self.drafted()
        own = logits[self.slots[owners], rows - self.ends[owners]].float()
        temperatures = torch.where(temperatures > 0, temperatures, 1.0)
        return own.div_(temperatures[owners, None]).softmax(-1)

    def step(self, logits: Tensor, draft_probs: Tensor | None = None, **more: object) -> EngineStep:
        """Return the step to decide, given p's processed logits ``(T + B, V)``."""
        rows, _ = self.drafted()
        firsts = self.ends[:-1].long()
        return EngineStep(
            tokens=self.inputs[rows + 1],
            logits=logits.float(),
            ends=self.ends[1:] - torch.arange(1, len(self.counts) + 1, device=self.ends.device),
            counts=self.counts,
            positions=self.positions[firsts].long(),
            draft_probs=draft_probs,
            **more,
        )
