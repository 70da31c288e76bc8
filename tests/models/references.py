"""References: a model's output for a text that it reads alone, at once, and without padding."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hf_lossy_assist.compat.caches import CACHE
from tests.decoding.fixtures import PAD, rectangle
from tests.tiny_models import VOCAB

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


@torch.no_grad()
def logits_of(model: PreTrainedModel, text: list[int]) -> Tensor:
    """Return ``(L, V)``, of a forward without a cache."""
    return model(torch.tensor([_tokens(text)]), use_cache=False).logits[0]


@torch.no_grad()
def states_of(model: PreTrainedModel, text: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Return for every layer the keys and the values ``(H, L, D)`` of a text."""
    cache = DynamicCache()  # without a configuration no layer forgets what leaves its window
    model(torch.tensor([_tokens(text)]), **{CACHE: cache})
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def assert_last_logits(model: PreTrainedModel, logits: Tensor, texts: Sequence[list[int]]) -> None:
    """Compare ``(B, n, V)`` with those of every text alone."""
    for row, text in zip(logits, texts, strict=True):
        torch.testing.assert_close(row, logits_of(model, text)[-len(row) :], **TOLERANCE)


def inputs_of(texts: Sequence[list[int]]) -> dict[str, Tensor]:
    """Return mask and positions of texts that end in the last column."""
    mask = (rectangle(texts) != PAD).long()
    return {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def _tokens(text: list[int]) -> list[int]:
    return [token for token in text if token != PAD]


def texts(seed: int, lengths: Sequence[int]) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, VOCAB) for _ in range(n)) for n in lengths]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
