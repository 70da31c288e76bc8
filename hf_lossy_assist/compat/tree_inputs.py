"""The inputs of a model's forward over trees: masks by ancestors, and positions by depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from .caches import cache_of, text_cache
from .models import SLIDING, layer_kinds


class TreeInputs:
    """Makes masks and positions of a model's forwards over trees.

    Masks are added to the attention weights as floating-point numbers: eager attention silently misreads booleans.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.dtype = model.dtype
        config = model.config.get_text_config(decoder=True)
        self._window = getattr(config, "sliding_window", None)
        kinds = layer_kinds(model)
        self._layer_of = {kind: kinds.index(kind) for kind in set(kinds)}

    def of_tree(
        self, carried: Mapping[str, Any], width: int, seen: int, ancestors: Tensor, depths: Tensor
    ) -> dict[str, Any]:
        """Return the inputs of one forward over the unread part of texts of ``width`` tokens, and the nodes after them.

        ``carried`` has cache, mask and positions of the texts; tokens beyond them are no padding. The cache holds
        ``seen`` slots of texts and nodes. ``ancestors`` ``(B, m, M)`` says which of all M nodes the last m see; only
        these m are sent. ``depths`` ``(B, M)`` are the nodes' depths, from 1.
        """
        rows, nodes, slots = ancestors.shape
        device, unread = ancestors.device, max(0, width - seen)
        text = torch.arange(width, device=device)
        keys = torch.cat([text.expand(rows, -1), width - 1 + depths], dim=1)
        sees = torch.ones(rows, unread + nodes, width + slots, dtype=torch.bool, device=device)
        sees[:, :unread] = torch.arange(width + slots, device=device) <= text[width - unread :, None]
        sees[:, unread:, width:] = ancestors
        if (mask := carried.get("attention_mask")) is not None:
            there = mask[:, :width].to(device=device, dtype=torch.bool)
            sees[..., : there.shape[1]] &= there[:, None]
        queries = torch.cat([keys[:, width - unread : width], keys[:, keys.shape[1] - nodes :]], dim=1)
        return {
            "attention_mask": self._masks(sees, queries, keys, text_cache(cache_of(carried))),
            "position_ids": self._positions(carried, width, unread, depths[:, slots - nodes :]),
        }

    def _masks(self, sees: Tensor, queries: Tensor, keys: Tensor, cache: Cache) -> Tensor | dict[str, Tensor]:
        masks = {}
        for kind, layer in self._layer_of.items():
            near = sees & (queries[:, :, None] - keys[:, None] < self._window) if kind == SLIDING else sees
            length = sees.shape[2]
            if layer < len(cache.layers):  # a sliding-window layer shows only the end of the text
                length = cache.layers[layer].get_mask_sizes(sees.shape[1])[0]
            hidden = ~near[:, None, :, max(0, sees.shape[2] - length) :]
            if length > sees.shape[2]:  # the empty slots of a static cache
                hidden = pad(hidden, (0, length - sees.shape[2]), value=True)
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=sees.device)
            masks[kind] = mask.masked_fill_(hidden, torch.finfo(self.dtype).min)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def of_token(self, mask: Tensor, cache: Cache) -> Tensor | dict[str, Tensor]:
        """Return the masks of a forward over one token, which sees what a mask ``(B, L)`` shows.

        transformers would ask of the mask itself, in every forward, whether it hides anything; it need not read these.
        """
        sees, masks = mask.bool()[:, None, None], {}
        for kind, layer in self._layer_of.items():
            near, length = sees, sees.shape[-1]
            if kind == SLIDING and self._window < length:
                near = near.clone()
                near[..., : length - self._window] = False
            if layer < len(cache.layers):
                length = min(length, cache.layers[layer].get_mask_sizes(1)[0])
            masks[kind] = near[..., near.shape[-1] - length :]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    @staticmethod
    def _positions(carried: Mapping[str, Any], width: int, unread: int, depths: Tensor) -> Tensor:
        positions, mask = carried.get("position_ids"), carried.get("attention_mask")
        if positions is None and mask is not None:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        if positions is None:
            positions = torch.arange(width, device=depths.device)[None]
        positions = positions.to(depths.device)
        if (missing := width - positions.shape[1]) > 0:
            more = torch.arange(1, missing + 1, device=depths.device)
            positions = torch.cat([positions, positions[:, -1:] + more], dim=1)
        newest = positions[:, width - 1 : width] + depths
        unread_text = positions[:, width - unread : width].expand(len(depths), -1)
        return torch.cat([unread_text, newest], dim=1)
