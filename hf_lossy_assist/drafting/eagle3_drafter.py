"""Drafts with an EAGLE-3 head or an MTP layer, from the states of the target's layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ..core.messages import Commit
from ..core.texts import RowShift
from ..core.transfers import to_device
from ..models.runner import Nodes
from .eagle3 import Eagle3
from .mtp import Mtp
from .state_drafter import StateDrafter, StateForwards
from .state_head import embedded


class Eagle3Forwards(StateForwards):
    """Runs such a head for a target. Its slot t holds the target's state at token t and the token after it."""

    def __init__(self, head: Eagle3 | Mtp, target: PreTrainedModel, mask: Tensor | None) -> None:
        super().__init__(head, target, mask)
        self._state: Tensor | None = None
        self._nodes: Tensor | None = None

    def _read(self, commit: Commit, g: Tensor) -> None:
        before, longest = self.seen, max(commit.counts)
        ids = commit.ids[:, before + 1 : commit.start + longest]
        counts = to_device(commit.counts, ids.device)[:, None]
        over = torch.arange(before + 1 - commit.start, longest, device=ids.device) >= counts
        output = self._forward(ids.masked_fill(over, 0), g)  # beyond the end of shorter rows, anything will do
        last = (counts + commit.start - 2 - before).clamp(min=0).to(output.device)
        self._state = output.gather(1, last[..., None].expand(-1, -1, output.shape[-1]))

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Any) -> CausalLMOutput:
        if tree is not None:  # which takes the outputs at its parents
            self._nodes = self._over_nodes(tokens, tree)
            return CausalLMOutput(logits=self.model.logits(self._nodes))
        if tokens.shape[1]:  # the first drafted token needs no forward: its state has been read
            self._state = self._forward(tokens, self._state)
        return CausalLMOutput(logits=self.model.logits(self._state))

    def _over_nodes(self, tokens: Tensor, tree: Nodes) -> Tensor:
        ancestors, came_from = tree.ancestors, tree.parents
        rows, k, slots = ancestors.shape
        before, read = self._state if slots == k else self._nodes, self.seen - (slots - k)
        device = before.device
        if self._mask is None:
            newest, text = torch.full((rows, 1), read, device=device), torch.ones(1, read - self._first, device=device)
        else:
            there = self._covering(read + 1)[:, self._first :]
            newest, text = there.sum(-1, keepdim=True) - 1, there[:, :-1]
        sees = torch.cat([text.bool()[:, None].expand(rows, k, -1), ancestors.to(device)], dim=-1)
        states = before[torch.arange(rows, device=device)[:, None], came_from.to(device)]
        return self._read_slots(tokens, states, newest + tree.depths[:, -k:].to(device) - 1, sees[:, None])

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        super()._move(shift, ids)
        self._state = self._state.index_select(0, shift.index.to(self._state.device))

    def _forward(self, ids: Tensor, states: Tensor) -> Tensor:
        """Run the head over the next slots; ``ids`` ``(B, n)`` are the tokens after those of the slots."""
        return self._read_slots(ids, states, *self._next(ids.shape[1]))

    def _next(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return positions and mask of the next ``count`` slots."""
        positions, there = self._places(count)
        slots = torch.arange(self._first, self.seen + count, device=self.model.device)
        queries = slots[-count:, None]
        if there is not None:
            # Padding sees itself, since attention over nothing gives NaN.
            return positions, ((slots <= queries) & there[:, None] | (slots == queries))[:, None]
        return positions, (slots <= queries)[None, None] if count > 1 else None

    def _read_slots(self, ids: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        output = self.model(embedded(ids, self.embeddings, self.model.device), states, positions, mask, self._cache)
        self.seen, self.sent = self.seen + ids.shape[1], ids.numel()
        return output


class Eagle3Drafter(StateDrafter):
    """Drafts with an EAGLE-3 head or an MTP layer: a forward over the target's new states, then one per token."""

    forwards = Eagle3Forwards

    def begin(self, ids: Tensor) -> None:
        super().begin(ids)
        # A slot holds the token after it too, so the slots know one token more than their number.
        self.unread = self.unread[:, 1:]
