"""Runs DFlash heads."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ..core.distributions import Randomness
from ..core.messages import Commit
from ..models.runner import Nodes
from ..models.static.cache_slot import StaticCacheSlot
from ..models.static.fixed import FixedSampler, Prepare, WholeDraft, chained
from ..models.static.forwards import shallow
from .dflash import DFlash
from .head_runner import HeadRunner
from .state_head import embedded


class DFlashRunner(HeadRunner):
    """Runs a DFlash head for a target. Its slot t holds keys and values of the target's state at token t.

    The forwards that others have for trees read blocks.
    """

    def __init__(
        self, head: DFlash, target: PreTrainedModel, mask: Tensor | None, slot: StaticCacheSlot | None = None
    ) -> None:
        super().__init__(head, target, mask, slot)
        self._lm_head = target.get_output_embeddings()

    def _read(self, commit: Commit, g: Tensor) -> None:
        self._remember(g)

    def _remember(self, g: Tensor, eager: bool = False) -> None:
        self.fixed.run(False, self._start, (g, self._places(g.shape[1])[0]), eager=eager)
        self.seen += g.shape[1]

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Any) -> CausalLMOutput:
        """Return the logits of the ``keep`` tokens after the text's newest one, ``tokens`` ``(B, 1)``.

        The head always reads a whole block, as in its training, where positions see those after them.
        """
        states = self._states(tokens)
        self.sent = states.shape[0] * states.shape[1]
        return CausalLMOutput(logits=self.model.scores(states[:, 1 : keep + 1], self._lm_head))

    def _states(self, newest: Tensor, eager: bool = False) -> Tensor:
        """Run the head over a block, and forget it."""
        embeds, positions, masks = self._inputs(newest)
        states = self.fixed.run(True, self._start, (embeds, positions), masks, eager=eager)
        self.fixed.forget_last(embeds.shape[1])
        return states

    def _inputs(self, newest: Tensor) -> tuple[Tensor, Tensor, dict[tuple[int | None, bool], Tensor | None]]:
        """Return embeddings, positions and masks of a block: which slots it sees, for each kind of layer."""
        config, size, rows = self.model.config, self.model.config.block_size, len(newest)
        tokens = pad(newest, (0, size - 1), value=config.mask_token_id)
        positions, there = self._places(size)
        slots = torch.arange(self._first, self.seen + size, device=self.device)
        distances = slots[-size:, None] - slots
        masks: dict[tuple[int | None, bool], Tensor | None] = {}
        for window, causal in set(config.kinds):
            seen = [] if there is None else [there[:, None, None]]
            seen += [distances >= 0] if causal else []
            if window is not None:
                seen += [distances.abs() < window]
            mask = torch.stack([x.expand(rows, 1, *distances.shape) for x in seen]).all(0) if seen else None
            masks[window, causal] = self.fixed.whole(mask, rows, size, self._start)
        return embedded(tokens, self.embeddings, self.device).to(self.model.dtype), positions, masks

    def kind(self, of_tree: bool) -> Hashable:
        weight = getattr(self._lm_head, "weight", None)
        return of_tree, self.embeddings.data_ptr(), None if weight is None else weight.data_ptr()

    @staticmethod
    def body(model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        head = shallow(model)
        if of_tree:
            return lambda *inputs, cache: (head.forward(*inputs, cache),)

        def remember(g: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, ...]:
            head.remember(g, positions, cache)
            return (g,)

        return remember

    def drafting(self, length: int, sampler: FixedSampler, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        head, lm_head, vocabulary = shallow(self.model), self._lm_head, self.vocabulary
        block = prepare("block", lambda _: head.forward)
        scored = prepare("scored", lambda _: lambda states: head.scores(states, lm_head))

        def body(embeds: Tensor, positions: Tensor, masks: Any, waits: Tensor | None, cache: Any) -> Any:
            logits = vocabulary.logits(scored(block(embeds, positions, masks, cache)[:, 1 : length + 1]))
            return chained(lambda i, token, waits: sampler(logits[:, i : i + 1], waits), length, waits)

        return body

    def trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        self.seen = 0
        if not of_tree:
            self._remember(self._anything(width), eager)
        states = self._states(self._any_token(), eager or not of_tree)
        return self.model.scores(states[:, 1:], self._lm_head)

    def trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        self.seen = 0
        return self._drafted(draft, self._any_token(), waits)[1]

    def _any_token(self) -> Tensor:
        return torch.zeros(self.fixed.slot.rows, 1, dtype=torch.long, device=self.device)

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> tuple[Tensor, Tensor] | None:
        chain, size = self.fixed.chain, self.model.config.block_size
        if chain is None or not self.fixed.slot.fits(self._start, size):
            return None
        self.sent = len(text) * size
        drafted = self._drafted(chain, text[:, -1:], self.fixed.waits(text, count, randomness, at_once=True))
        return tuple(x[:, :count] for x in drafted)

    def _drafted(self, draft: WholeDraft, newest: Tensor, waits: Tensor | None) -> tuple[Tensor, Tensor]:
        embeds, positions, masks = self._inputs(newest)
        self.fixed.begin(self._start, embeds.shape[1], prepared=draft is self.fixed.chain)
        positions = positions.expand(len(newest), -1).contiguous()
        return draft(embeds=embeds, positions=positions, masks=masks, waits=waits, cache=self.fixed.slot.cache)
