"""Drafts whole steps of a text, and tokens for the steps that the target writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.messages import Commit, Draft, DraftCost
from ..core.steps import BoundSteps
from ..core.texts import BatchLayout, DraftedText
from .draft_length import DraftLength
from .model import ModelDrafter


class StepDrafter(ModelDrafter):
    """Writes a step for the target to score; after a rejected one, drafts tokens until the target has written its own.

    SpecReason, sections 4.1 and 4.2. It drafts for one text.
    """

    def __init__(
        self, model: PreTrainedModel, draft_length: int | DraftLength, steps: BoundSteps, **settings: Any
    ) -> None:
        super().__init__(model, draft_length, **settings)
        self.steps = steps
        self._own: list[int] = []  # the tokens so far of a step that the target writes

    def propose(self, ids: Tensor, layout: BatchLayout | None, remaining: Sequence[int]) -> Draft:
        if not self._own:
            return self._write_step(ids, remaining[0])
        draft = super().propose(ids, layout, [min(remaining[0], self.steps.longest - len(self._own))])
        drafted = draft.tokens[0].tolist()
        for n in range(1, len(drafted) + 1):
            if self.steps.end_with(self._own + drafted[:n]):  # the next step is the draft's again
                self._drafted = n
                logits = None if draft.logits is None else draft.logits[:, :n]
                return replace(draft, tokens=draft.tokens[:, :n], logits=logits, bonus=False)
        return draft

    def observe(self, commit: Commit) -> None:
        if not self._own and commit.accepted[0] == commit.drafted:
            return  # the step stays
        if self._own:
            super().observe(commit)
        self._own += commit.ids[0, commit.start : commit.start + commit.counts[0]].tolist()
        if not self._own or self.steps.end_with(self._own):
            self._own = []

    def _write_step(self, ids: Tensor, longest: int) -> Draft:
        before = self.calls, self.tokens
        self._forget_after(ids.shape[1] - 1)
        self.text = DraftedText(ids)
        step, logits = [], []
        while len(step) < longest and not (step and self.steps.end_with(step)):
            token, processed, _ = self.step()
            self.text.append(token)
            step.append(int(token))
            if self.keep_logits:
                logits.append(processed)
        return Draft(
            self.text.drafted,
            torch.cat(logits, dim=1).float() if logits else None,
            bonus=False,
            step=True,
            cost=DraftCost(self.calls - before[0], self.tokens - before[1]),
        )
