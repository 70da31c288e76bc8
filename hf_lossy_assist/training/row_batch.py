"""Batches whose rows can be replaced by other texts at any time, aligned on the right as in :mod:`..models.reading`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..compat.caches import new_cache
from ..compat.models import device_of
from ..models.reading import CachedText, Known, cached_text, filled, forward


class RowBatch:
    """A batch of texts that grow by one token per step, and come and go between steps, each by a key."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._texts: dict[int, list[int]] = {}  # of each row
        self._new: dict[int, Known] = {}
        self._cache = new_cache(model)

    def put(self, key: int, memory: CachedText, n: int) -> None:
        """Add the first ``n`` tokens of a text that the model has read; the next step has to go on with it."""
        self._new[key] = memory, n

    @torch.inference_mode()
    def remove(self, key: int) -> CachedText:
        """Return a text, with which the next step does not go on."""
        return cached_text(self._cache, [*self._texts].index(key), self._texts[key])

    @torch.inference_mode()
    def step(self, tokens: Mapping[int, int]) -> Tensor:
        """Append a token to every text, by key, and return the next token's logits ``(N, V)`` in the same order.

        Texts without a token are forgotten.
        """
        if self._new or [*tokens] != [*self._texts]:
            known = {key: self._new.get(key) or (self.remove(key), len(self._texts[key])) for key in tokens}
            self._cache = filled(self.model, [*known.values()])
            self._texts, self._new = {key: [*memory.tokens[:n]] for key, (memory, n) in known.items()}, {}
        lengths = torch.tensor([len(text) for text in self._texts.values()])
        width = int(lengths.max())
        mask = (torch.arange(width + 1) >= width - lengths[:, None]).long()
        ids, device = torch.tensor([*tokens.values()])[:, None], device_of(self.model)
        logits = forward(self.model, ids.to(device), mask.to(device), self._cache).logits[:, -1]
        for key, token in tokens.items():
            self._texts[key].append(token)
        return logits
