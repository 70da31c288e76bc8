"""References: a model's output for a text that it reads alone, at once, and without padding."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.core.texts import RowShift, Texts
from hf_lossy_assist.models.runner import ModelRunner
from tests.decoding.fixtures import PAD, longer, random_round, random_tokens, rectangle
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


def prompts(lengths: tuple[int, ...], generator: torch.Generator) -> list[list[int]]:
    """Return texts of equal length, which begin with padding."""
    texts = [random_tokens(length, generator) for length in lengths]
    return [[PAD] * (max(lengths) - len(text)) + text for text in texts]


def keep(runner: ModelRunner, layout: Texts, shift: RowShift | None, extended: torch.Tensor) -> None:
    """Follow a round of which ``extended`` has all tokens, also those that were not kept."""
    if shift is None:
        runner.rewind(layout.width - 1)
        runner.extend(layout.width)
    else:
        runner.move(shift, extended)


@torch.no_grad()
def follow_rows(
    runner: ModelRunner, texts: list[list[int]], lengths: Sequence[int], generator: torch.Generator
) -> None:
    """Run rounds of drafts, of which rows keep different parts and after which some leave, and compare each row."""
    layout, ids, moved, began = Texts(rectangle(texts), PAD), rectangle(texts), 0, len(texts)
    for drafted in lengths:
        new = random_round(len(texts), drafted, generator, ends=0.1)
        candidate = [text + tokens[:-1] for text, tokens in zip(texts, new.tokens, strict=True)]
        logits = runner.run(rectangle(candidate), drafted + 1).logits
        assert_last_logits(runner.model, logits[:, -(drafted + 1) :], candidate)
        extended = torch.cat([ids, torch.tensor(new.tokens)], dim=1)
        shift = layout.grow(extended, longer(layout, new.counts), new.ended)
        texts = [new.after(texts)[i] for i in new.stays()]
        ids = rectangle(texts)
        keep(runner, layout, shift, extended)
        moved += shift is not None
        assert runner.seen < layout.width
    assert moved > 2
    assert 1 < len(texts) < began, "rows have left, and others have stayed"


def _tokens(text: list[int]) -> list[int]:
    return [token for token in text if token != PAD]


def texts(seed: int, lengths: Sequence[int]) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, VOCAB) for _ in range(n)) for n in lengths]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
