"""Runs DFlash heads on static caches: compiled, or recorded as graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..core.distributions import Randomness
from ..models.static.fixed_runner import Prepare, TokenChoice, WholeDraft, chained
from ..models.static.forwards import shallow
from .dflash_drafter import DFlashForwards
from .state_static import StaticStateForwards


class StaticDFlashForwards(StaticStateForwards, DFlashForwards):
    """Runs a DFlash head on a static cache. The forwards that others have for trees read blocks."""

    def _kind(self, of_tree: bool) -> Hashable:
        weight = getattr(self._lm_head, "weight", None)
        return of_tree, self.embeddings.data_ptr(), None if weight is None else weight.data_ptr()

    def _body(self, model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        head = shallow(model)
        if of_tree:
            return lambda *inputs, cache: (head.forward(*inputs, cache),)

        def remember(g: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, ...]:
            head.remember(g, positions, cache)
            return (g,)

        return remember

    def _drafting(self, length: int, choice: TokenChoice, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        head, lm_head, vocabulary = shallow(self.model), self._lm_head, self._vocabulary
        block = prepare("block", lambda _: head.forward)
        scored = prepare("scored", lambda _: lambda states: head.scores(states, lm_head))

        def body(embeds: Tensor, positions: Tensor, masks: Any, waits: Tensor | None, cache: Any) -> Any:
            logits = vocabulary.logits(scored(block(embeds, positions, masks, cache)[:, 1 : length + 1]))
            return chained(lambda i, token, waits: choice(logits[:, i : i + 1], waits), length, waits)

        return body

    def _trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        self.seen = 0
        if not of_tree:
            self._remember(self._anything(width), eager)
        states = self._states(*self._inputs(self._any_token()), eager or not of_tree)
        return self.model.scores(states[:, 1:], self._lm_head)

    def _trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        self.seen = 0
        return self._drafted(draft, self._any_token(), waits)[1]

    def _any_token(self) -> Tensor:
        return torch.zeros(self.slot.rows, 1, dtype=torch.long, device=self.device)

    def _remember(self, g: Tensor, eager: bool = False) -> None:
        self._send(False, (g, self._places(g.shape[1])[0]), eager=eager)

    def _states(self, embeds: Tensor, positions: Tensor, masks: dict[Any, Tensor], eager: bool = False) -> Tensor:
        states = self._send(True, (embeds, positions), masks, eager=eager)
        self.seen -= embeds.shape[1]
        return states

    def _waits(self, text: Tensor, count: int, randomness: Randomness) -> Tensor | None:
        """Draw what chooses ``count`` tokens at once."""
        if not self.chain.choice.drawn:
            return None
        waits = randomness.waits((len(text), count, self.chain.choice.drawn), text.device)
        return pad(waits, (0, 0, 0, self.chain.length - count), value=1.0).to(self.device)

    def _masks(self, rows: int, count: int, there: Tensor | None) -> dict[Any, Tensor]:
        found = super()._masks(rows, count, there)
        return {kind: self._whole(mask, rows, count).contiguous() for kind, mask in found.items()}

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> tuple[Tensor, Tensor] | None:
        size = self.model.config.block_size
        if self.chain is None or not self.slot.fits(self.seen - self._first, size):
            return None
        self.sent = len(text) * size
        drafted = self._drafted(self.chain, text[:, -1:], self._waits(text, count, randomness))
        return tuple(x[:, :count] for x in drafted)

    def _drafted(self, draft: WholeDraft, newest: Tensor, waits: Tensor | None) -> tuple[Tensor, Tensor]:
        embeds, positions, masks = self._inputs(newest)
        self._go_to_draft(draft, embeds.shape[1])
        positions = positions.expand(len(newest), -1).contiguous()
        return draft(embeds=embeds, positions=positions, masks=masks, waits=waits, cache=self.slot.cache)
