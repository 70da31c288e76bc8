"""Which of the draft model's tokens are which of the target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError

MOST_PADDING = 1024
"""Models of one tokenizer pad its vocabulary differently, but not by more tokens than this."""


class Vocabulary:
    """One vocabulary for both models."""

    def context(self, ids: Tensor) -> Tensor:
        """Return the draft model's ids ``(B, L)`` of a text in the target's."""
        return ids

    def logits(self, logits: Tensor) -> Tensor:
        """Return logits over the target's vocabulary, of the draft model's ``(B, n, V)``."""
        return logits


@dataclass(frozen=True)
class PaddedVocabulary(Vocabulary):
    """One tokenizer, but one model has more rows than the other: token i is token i where both have it.

    What only the target has is never drafted, q being 0 there; in a text, the draft reads ``filler`` instead. What
    only the draft has is cut off.

    Attributes
    ----------
    target, draft
        Tokens of each model.
    filler
        A token that the draft has.
    """

    target: int
    draft: int
    filler: int = 0

    def context(self, ids: Tensor) -> Tensor:
        return ids if self.draft >= self.target else ids.masked_fill(ids >= self.draft, self.filler)

    def logits(self, logits: Tensor) -> Tensor:
        missing = self.target - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)  # a negative padding cuts


def vocabulary_of(target: PreTrainedModel, draft: PreTrainedModel) -> Vocabulary:
    """Return how the tokens of two models with one tokenizer correspond."""
    sizes = [model.config.get_text_config(decoder=True).vocab_size for model in (target, draft)]
    if sizes[0] == sizes[1]:
        return Vocabulary()
    pad = getattr(draft.config.get_text_config(decoder=True), "pad_token_id", None)
    return PaddedVocabulary(*sizes, filler=pad if pad is not None and 0 <= pad < sizes[1] else 0)


def same_tokenizer(a: Any, b: Any) -> bool:
    """Tell whether two tokenizers have the same tokens under the same numbers."""
    return a is b or a.get_vocab() == b.get_vocab()


def check_vocabularies(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise where two models without tokenizers to compare don't look as if they had the same."""
    sizes = [model.config.get_text_config(decoder=True).vocab_size for model in (target, draft)]
    if abs(sizes[0] - sizes[1]) > MOST_PADDING:
        raise LossyValueError(
            f"`assistant_model` has a vocabulary of {sizes[1]} tokens, but the target one of {sizes[0]}, which is more "
            "than padding; pass `tokenizer` and `assistant_tokenizer`, also where they are the same"
        )


def check_tokenizers(target: PreTrainedModel, draft: PreTrainedModel, tokenizer: Any, assistant_tokenizer: Any) -> None:
    """Raise where the two tokenizers look swapped: by where they come from, or by how many tokens they have."""
    sources = [target.name_or_path, draft.name_or_path]
    by_source = all(sources) and sources[0] != sources[1]
    by_source = by_source and [assistant_tokenizer.name_or_path, tokenizer.name_or_path] == sources
    sizes = [model.config.get_text_config(decoder=True).vocab_size + MOST_PADDING for model in (target, draft)]
    lengths = [len(tokenizer), len(assistant_tokenizer)]
    fit = [length <= size for length, size in zip(lengths, sizes, strict=True)]
    if by_source or not all(fit):
        raise LossyValueError(
            f"`tokenizer` has to be the target's and `assistant_tokenizer` the draft model's, but they have {lengths} "
            f"tokens, are from {[tokenizer.name_or_path, assistant_tokenizer.name_or_path]}, and the models' "
            f"vocabularies have {[size - MOST_PADDING for size in sizes]}; exchange them if they are swapped"
        )
