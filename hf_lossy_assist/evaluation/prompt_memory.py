"""Prompts that several modes answer, read once by each model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from ..compat import cache_of, forward_accepts
from ..mining.reading import CachedText, fill, only_last_logits, read
from .meters import synchronizer
from .modes import DecodingMode, Models
from .requests import PromptBatch

_BESIDE_IDS = ("position_ids", "cache_position", "token_type_ids")


class ReadPrompts:
    """A model's caches of the prompts of a batch, all tokens but the last; an empty cache is filled from them.

    Prompts are read one by one, without padding.
    """

    def __init__(self, model: PreTrainedModel, batch: PromptBatch) -> None:
        self.model = model
        self.prompts = batch.ids
        synchronize = synchronizer(model.device)
        synchronize()
        started = time.perf_counter()
        self.texts = [
            read(model, [ids[mask.bool()].tolist()[:-1]], [(CachedText(), 0)], **only_last_logits(model)).memories[0]
            for ids, mask in zip(batch.ids, batch.mask, strict=True)
        ]
        synchronize()
        self.seconds = time.perf_counter() - started

    @staticmethod
    def suit(model: PreTrainedModel) -> bool:
        """Tell whether a model's cache is one slot per token, and its forward says which logits are wanted."""
        return (
            isinstance(model, PreTrainedModel)
            and not model.config.is_encoder_decoder
            and forward_accepts(model, "logits_to_keep")
            and _plain(DynamicCache(config=model.config.get_text_config(decoder=True)))
        )

    def __call__(self, module: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Fill the empty cache of a forward that begins with the prompts, and leave the tokens in it out."""
        ids, cache = inputs.get("input_ids"), cache_of(inputs)
        if not isinstance(ids, Tensor) or not self._begins(ids, cache):
            return None
        width = min(self.prompts.shape[1] - 1, ids.shape[1] - max(1, inputs.get("logits_to_keep") or 1))
        fill(cache, [text.layers for text in self.texts], self._lengths(width), width)
        shorter = {name: inputs[name][:, width:] for name in _BESIDE_IDS if _has_dimensions(inputs.get(name), 2)}
        if _has_dimensions(mask := inputs.get("attention_mask"), 4):  # a tree's: what each token sees
            shorter["attention_mask"] = mask[:, :, width:]
        return args, {**inputs, **shorter, "input_ids": ids[:, width:]}

    def _begins(self, ids: Tensor, cache: Any) -> bool:
        width = self.prompts.shape[1]
        return (
            type(cache) is DynamicCache
            and cache.get_seq_length() == 0
            and _plain(cache)
            and ids.shape[0] == len(self.prompts)
            and torch.equal(ids[:, :width], self.prompts)
        )

    def _lengths(self, width: int) -> Sequence[int]:
        """Return how many tokens of each prompt stand in the first ``width`` columns."""
        late = self.prompts.shape[1] - 1 - width
        return [max(0, len(text.tokens) - late) for text in self.texts]


def _plain(cache: DynamicCache) -> bool:
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def _has_dimensions(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() == count


class PromptMemory:
    """Reads the prompts of a batch once for all modes that answer it.

    Modes that draft in another way than with a model of transformers read their prompts themselves.
    """

    def __init__(self, models: Models, batch: PromptBatch) -> None:
        roles = {"target": models.target, **({} if models.draft is None else {"draft": models.draft})}
        able = all(map(ReadPrompts.suit, roles.values())) and int(batch.mask.sum(-1).min()) > 1
        self._read = {role: ReadPrompts(model, batch) for role, model in roles.items()} if able else {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, the models' first forwards over the prompts are over their last tokens only."""
        with ExitStack() as stack:
            for known in self._read.values():
                handle = known.model.register_forward_pre_hook(known, with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def seconds(self, mode: DecodingMode) -> float:
        """Return what reading the prompts took of the models that a mode uses."""
        used = {mode.answers} | ({"draft"} if mode.gamma is not None else set())
        return sum(known.seconds for role, known in self._read.items() if role in used)
