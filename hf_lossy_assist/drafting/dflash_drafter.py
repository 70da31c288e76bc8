"""Drafts with a DFlash head: a block of tokens in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ..compat.caches import rollback
from ..core.messages import Commit, Draft, DraftCost
from ..core.texts import Texts
from ..models.runner import Nodes
from .dflash import DFlash
from .model import lengths_of
from .state_drafter import StateDrafter, StateForwards
from .state_head import embedded


class DFlashForwards(StateForwards):
    """Runs a DFlash head for a target. Its slot t holds keys and values of the target's state at token t."""

    def __init__(self, head: DFlash, target: PreTrainedModel, mask: Tensor | None) -> None:
        super().__init__(head, target, mask)
        self._lm_head = target.get_output_embeddings()

    def _read(self, commit: Commit, g: Tensor) -> None:
        self._remember(g)

    def _remember(self, g: Tensor) -> None:
        self.model.remember(g, self._places(g.shape[1])[0], self._cache)
        self.seen += g.shape[1]

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Any) -> CausalLMOutput:
        """Return the logits of the ``keep`` tokens after the text's newest one, ``tokens`` ``(B, 1)``.

        The head always reads a whole block, as in its training, where positions see those after them.
        """
        states = self._states(*self._inputs(tokens))
        self.sent = states.shape[0] * states.shape[1]
        return CausalLMOutput(logits=self.model.scores(states[:, 1 : keep + 1], self._lm_head))

    def _inputs(self, newest: Tensor) -> tuple[Tensor, Tensor, dict[tuple[int | None, bool], Tensor | None]]:
        """Return embeddings, positions and masks of a block."""
        config, size = self.model.config, self.model.config.block_size
        tokens = pad(newest, (0, size - 1), value=config.mask_token_id)
        positions, there = self._places(size)
        return (
            embedded(tokens, self.embeddings, self.model.device).to(self.model.dtype), positions,
            self._masks(len(tokens), size, there),
        )  # fmt: skip

    def _states(self, embeds: Tensor, positions: Tensor, masks: dict[Any, Tensor | None]) -> Tensor:
        """Run the head over a block, and forget it."""
        states = self.model(embeds, positions, masks, self._cache)
        rollback(self._cache, embeds.shape[1])
        return states

    def _masks(self, rows: int, count: int, there: Tensor | None) -> dict[tuple[int | None, bool], Tensor | None]:
        """Return which slots the next ``count`` see, for each kind of layer; None where they see all."""
        slots = torch.arange(self._first, self.seen + count, device=self.model.device)
        distances = slots[-count:, None] - slots
        masks: dict[tuple[int | None, bool], Tensor | None] = {}
        for window, causal in set(self.model.config.kinds):
            seen = [] if there is None else [there[:, None, None]]
            seen += [distances >= 0] if causal else []
            if window is not None:
                seen += [distances.abs() < window]
            shape = (rows, 1, *distances.shape)
            masks[window, causal] = torch.stack([x.expand(shape) for x in seen]).all(0) if seen else None
        return masks


class DFlashDrafter(StateDrafter):
    """Drafts with a DFlash head: one forward over a block, after keys and values of the target's new states."""

    forwards = DFlashForwards

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        length = self.draft_length
        length.size = min(length.size, self.model.longest)  # a schedule would add on, and come back late
        n = min(length.size, max(remaining) - 1) if self.runner.seen else 0
        self._drafted = n = max(n, 0)
        if n == 0:
            return Draft.empty(ids)
        self.begin(ids)
        if (whole := self.runner.draft(ids, n, self.randomness)) is not None:
            return self._whole(1, *whole, remaining)
        logits = self.vocabulary.logits(self.runner.forward(self.unread, n).logits.to(ids.device, torch.float32))
        self.calls, self.tokens = self.calls + 1, self.tokens + self.runner.sent
        chosen = map(self.choose, logits.split(1, dim=1) if self._reads_text else [logits])
        tokens, logits, chosen_by = (torch.cat(x, dim=1) for x in zip(*chosen, strict=True))
        sure: list[list[bool]] = []
        if self.stop is not None:
            self.stop.begin()
            pairs = zip(chosen_by.split(1, dim=1), tokens.split(1, dim=1), strict=True)
            sure = torch.stack([self.stop.goes_on(q, token) for q, token in pairs]).tolist()
            self._drafted = n = max((row.index(False) + 1 if False in row else n) for row in zip(*sure, strict=True))
        return Draft(
            tokens[:, :n],
            logits[:, :n] if self.keep_logits else None,
            lengths=lengths_of(n, remaining, sure[:n]),
            cost=DraftCost(1, self.runner.sent),
        )
