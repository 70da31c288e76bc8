"""Reading texts of different lengths in one forward, and remembering what the cache holds of each.

Every text is aligned on the right, as in a batch padded on the left, so any model that can generate in batches can
be used, whatever its positions and windows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from ..compat import forward_accepts, has_recurrent_state, new_cache, refusal_of_cache
from ..errors import LossyUnsupportedError

Layers = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values ``(H, n, D)`` of every layer."""


@dataclass(frozen=True, eq=False)
class CachedText:
    """A text that a model has read, and the layers of its cache."""

    tokens: tuple[int, ...] = ()
    layers: Layers = ()

    def common(self, tokens: Sequence[int]) -> int:
        """Return how many tokens this text and another share from the beginning."""
        n = min(len(self.tokens), len(tokens))
        return next((i for i in range(n) if self.tokens[i] != tokens[i]), n)


def check(model: PreTrainedModel) -> None:
    """Refuse a model whose cache can't be cut back to a prefix."""
    refusal = refusal_of_cache(model, new_cache(model))
    if has_recurrent_state(model):
        refusal = f"{type(model).__name__} keeps a recurrent state, which can't be cut back"
    if refusal or model.config.is_encoder_decoder:
        reason = refusal or f"{type(model).__name__} is an encoder-decoder"
        raise LossyUnsupportedError(f"mining can't use this model: {reason}")


def forward(model: PreTrainedModel, ids: Tensor, mask: Tensor, cache: DynamicCache | None = None, **kwargs: Any) -> Any:
    """Run a model over ``ids (B, k)`` that are padded on the left together with what the cache holds.

    ``mask (B, L + k)`` covers both. Positions count the unmasked tokens, as in ``generate()``.
    """
    if forward_accepts(model, "position_ids"):
        kwargs["position_ids"] = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
    return model(
        input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=cache is not None, return_dict=True,
        **kwargs,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Reading:
    """Logits ``(B, k, V)`` of the last k tokens of texts that were read in one forward, and their memories."""

    logits: Tensor
    memories: list[CachedText]


@torch.inference_mode()
def read(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], known: Sequence[tuple[CachedText, int]], **kwargs: Any
) -> Reading:
    """Read several texts in one forward, except for what is known of each.

    ``known`` has a memory for every text, and how many of its first tokens need not be read again. All texts are read
    from equally far before their end, so some of what is known may be read once more.
    """
    k = max(len(text) - n for text, (_, n) in zip(texts, known, strict=True))
    past = [max(len(text) - k, 0) for text in texts]
    width = max(past)
    cache = new_cache(model)
    _fill(cache, [memory.layers for memory, _ in known], past, width)
    ids = torch.zeros((len(texts), k), dtype=torch.long)
    mask = torch.zeros((len(texts), width + k), dtype=torch.long)
    for row, (text, n) in enumerate(zip(texts, past, strict=True)):
        ids[row, k - len(text) + n :] = torch.tensor(text[n:], dtype=torch.long)
        mask[row, width + k - len(text) :] = 1
    logits = forward(model, ids.to(model.device), mask.to(model.device), cache, **kwargs).logits
    memories = [CachedText(tuple(text), _held(cache, row, width + k - len(text))) for row, text in enumerate(texts)]
    return Reading(logits, memories)


def _fill(cache: DynamicCache, layers: Sequence[Layers], past: Sequence[int], width: int) -> None:
    """Let an empty cache hold the first tokens of every row's memory."""
    if width == 0:
        return
    for i in range(max(len(row) for row in layers)):
        pieces = [tuple(x[:, :n] for x in row[i]) if row else None for row, n in zip(layers, past, strict=True)]
        cache.update(*_align(pieces, width), i)


def _held(cache: DynamicCache, row: int, start: int) -> Layers:
    """Return a copy of a row's keys and values from a column on."""
    return tuple((layer.keys[row, :, start:].clone(), layer.values[row, :, start:].clone()) for layer in cache.layers)


def only_last_logits(model: PreTrainedModel) -> dict[str, int]:
    """Return the argument of ``forward`` that spares the LM head all positions but the last, where there is one."""
    return {"logits_to_keep": 1} if forward_accepts(model, "logits_to_keep") else {}


def _align(pieces: Sequence[tuple[Tensor, Tensor] | None], width: int) -> tuple[Tensor, Tensor]:
    """Stack keys and values ``(H, n, D)`` into ``(B, H, width, D)`` each, with zeros on the left."""
    like = next(piece for piece in pieces if piece is not None)
    stacked = []
    for kind in (0, 1):
        heads, _, size = like[kind].shape
        out = like[kind].new_zeros(len(pieces), heads, width, size)
        for row, piece in enumerate(pieces):
            if piece is not None:
                out[row, :, width - piece[kind].shape[1] :] = piece[kind]
        stacked.append(out)
    return stacked[0], stacked[1]
