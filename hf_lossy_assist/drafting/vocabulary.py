"""Maps the draft model's tokens to the target's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError

MOST_PADDING = 1024
"""Vocabularies of one tokenizer differ by at most so many tokens of padding."""


class Vocabulary(ABC):
    """Translates between the target's tokens and the draft model's own."""

    def context(self, ids: Tensor) -> Tensor:
        """Return the draft model's ids ``(B, L)`` for a text in the target's tokens."""
        return ids

    @abstractmethod
    def logits(self, logits: Tensor) -> Tensor:
        """Return logits over the target's vocabulary, from the draft model's ``(B, n, V)``."""


@dataclass(frozen=True)
class PaddedVocabulary(Vocabulary):
    """One tokenizer for models with different numbers of tokens: token i is token i where both have it.

    Tokens that only the target has are never drafted, as q is 0 there; the draft reads ``filler`` in their place.
    Tokens that only the draft has are cut off.
    """

    target: int
    draft: int
    filler: int = 0

    def context(self, ids: Tensor) -> Tensor:
        return ids if self.draft >= self.target else ids.masked_fill(ids >= self.draft, self.filler)

    def logits(self, logits: Tensor) -> Tensor:
        missing = self.target - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)  # a negative padding cuts


NEVER = -1e6
"""A logit with probability 0 beside any other; q stays a distribution where processors forbid all others."""


class DraftVocabulary(Vocabulary):
    """Some of the target's ``size`` tokens, ``ids`` ``(V_draft,)``; q is 0 at all others."""

    def __init__(self, ids: Tensor, size: int) -> None:
        self.ids = ids
        self.size = size

    def logits(self, logits: Tensor) -> Tensor:
        full = logits.new_full((*logits.shape[:-1], self.size), NEVER)
        return full.index_copy_(-1, self.ids.to(logits.device), logits)


def vocabulary_sizes(*models: PreTrainedModel) -> list[int]:
    return [model.config.get_text_config(decoder=True).vocab_size for model in models]


def vocabulary_of(target: PreTrainedModel, draft: PreTrainedModel) -> Vocabulary | None:
    """Return how to translate between two models of one tokenizer; None where nothing has to be translated."""
    sizes = vocabulary_sizes(target, draft)
    if sizes[0] == sizes[1]:
        return None
    pad = getattr(draft.config.get_text_config(decoder=True), "pad_token_id", None)
    return PaddedVocabulary(*sizes, filler=pad if pad is not None and 0 <= pad < sizes[1] else 0)


def same_tokenizer(a: Any, b: Any) -> bool:
    return a is b or a.get_vocab() == b.get_vocab()


def check_vocabularies(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise if the sizes of two models' vocabularies rule out that they have one tokenizer."""
    sizes = vocabulary_sizes(target, draft)
    if abs(sizes[0] - sizes[1]) > MOST_PADDING:
        raise LossyValueError(
            f"`assistant_model` has a vocabulary of {sizes[1]} tokens, but the target one of {sizes[0]}, and padding "
            "can't explain the difference; pass `tokenizer` and `assistant_tokenizer`, even if they are the same"
        )


def check_tokenizers(target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any, assistant_tokenizer: Any) -> None:
    """Raise where two tokenizers look swapped, by their sources or their numbers of tokens."""
    sources = [target.name_or_path, draft.name_or_path]
    given = [tokenizer.name_or_path, assistant_tokenizer.name_or_path]
    swapped = all(sources) and sources[0] != sources[1] and given[::-1] == sources
    sizes, lengths = vocabulary_sizes(target, draft), [len(tokenizer), len(assistant_tokenizer)]
    if swapped or any(length > size + MOST_PADDING for length, size in zip(lengths, sizes, strict=True)):
        raise LossyValueError(
            f"`tokenizer` has to be the target's and `assistant_tokenizer` the draft model's, but they have {lengths} "
            f"tokens and are from {given}, and the models' vocabularies have {sizes}; exchange them if they are swapped"
        )
