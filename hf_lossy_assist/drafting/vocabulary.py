"""Maps the draft model's tokens to the target's, and lets drafts choose among a text's most frequent tokens only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import LossyUnsupportedError, LossyValueError
from ..heads.identity import row_norms
from ..models.quantised import check_changeable, with_replaced
from ..values import bounded

MOST_PADDING = 1024
"""Vocabularies of one tokenizer differ by at most so many tokens of padding."""


class Vocabulary:
    """Translates between the target's tokens and the draft model's own; here these are the same."""

    def context(self, ids: Tensor) -> Tensor:
        """Return the draft model's ids ``(B, L)`` for a text in the target's tokens."""
        return ids

    def logits(self, logits: Tensor) -> Tensor:
        """Return logits over the target's vocabulary, from the draft model's ``(B, n, V)``."""
        return logits


SAME = Vocabulary()

NEVER = -1e6
"""A logit with probability 0 beside any other; q stays a distribution where processors forbid all others."""


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
        return nn.functional.pad(logits, (0, missing), value=NEVER)  # a negative padding cuts


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


def vocabulary_of(target: PreTrainedModel, draft: PreTrainedModel) -> Vocabulary:
    """Return how to translate between two models of one tokenizer."""
    sizes = vocabulary_sizes(target, draft)
    if sizes[0] == sizes[1]:
        return SAME
    pad = getattr(draft.config.get_text_config(decoder=True), "pad_token_id", None)
    return PaddedVocabulary(*sizes, filler=pad if pad is not None and 0 <= pad < sizes[1] else 0)


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


class FewTokensHead(nn.Module):
    """An LM head that computes the logits of some tokens; all others have probability 0."""

    def __init__(self, head: nn.Linear, tokens: Tensor) -> None:
        super().__init__()
        self.vocabulary = DraftVocabulary(tokens, head.out_features)
        self.out_features, self.in_features = head.out_features, head.in_features
        self.row_norms = row_norms(head.weight)  # by which identities know the model
        with torch.device("meta"):
            self.rows = nn.Linear(head.in_features, len(tokens), bias=head.bias is not None)
        self.rows.weight = _some(head.weight, tokens)
        if head.bias is not None:
            self.rows.bias = _some(head.bias, tokens)

    def forward(self, states: Tensor) -> Tensor:
        return self.vocabulary.logits(self.rows(states).float())  # float16 has no NEVER

    def _save_to_state_dict(self, *args: object) -> None:
        raise LossyUnsupportedError(
            "a draft of `trim_draft_vocabulary` can't be saved; save the draft that it was made from, and the tokens"
        )


def _some(rows: Tensor, tokens: Tensor) -> nn.Parameter:
    return nn.Parameter(rows.detach()[tokens.to(rows.device)], requires_grad=False)


def trim_draft_vocabulary(draft: PreTrainedModel, tokens: Iterable[int]) -> PreTrainedModel:
    """Return a draft whose LM head covers some tokens: q(x) is 0 for all others.

    The head of a small model with a large vocabulary is much of its cost. Every rule stays exact, as q is the
    distribution that tokens are drawn from; a token outside the list comes from the target alone. After FR-Spec,
    `arXiv:2502.14856 <https://arxiv.org/abs/2502.14856>`_.

    The given draft is unchanged, and the new one shares all but its head. It can't be saved or trained. Pass it on to
    :func:`quantize_draft` to have both.

    Parameters
    ----------
    draft
        A decoder with a linear LM head.
    tokens
        Ids of the tokens to keep, in any order, such as :func:`frequent_tokens` finds.

    Raises
    ------
    LossyValueError
        When ``tokens`` is empty or has ids that the draft lacks, or the draft is no model of transformers.
    LossyUnsupportedError
        When the draft's LM head is no plain linear layer in memory, or it is an EAGLE-3 or DFlash head.

    Examples
    --------
    >>> from hf_lossy_assist import pairs, trim_draft_vocabulary
    >>> pair = pairs.load("arithmetic")
    >>> draft = trim_draft_vocabulary(pair.draft, range(10))
    >>> draft.lm_head.rows.out_features
    10
    """
    check_changeable("draft", draft)
    head = draft.get_output_embeddings()
    if type(head) is not nn.Linear or head.weight.is_meta:
        raise LossyUnsupportedError(
            f"`draft` has to have a linear LM head in memory, but that of {type(draft).__name__} is a "
            f"{type(head).__name__}; trim the draft's vocabulary before it is quantised or offloaded"
        )
    kept, size = sorted(set(tokens)), head.out_features
    if not kept or kept[0] < 0 or kept[-1] >= size:
        raise LossyValueError(f"`tokens` has to be ids >= 0 and < {size}, but is {kept[:3]!r} … {kept[-3:]!r}")
    ids = torch.tensor(kept, device=head.weight.device)

    def replacement(module: nn.Module) -> nn.Module | None:
        # Modules of the copy are others, so the head is known by its weight.
        return FewTokensHead(head, ids) if type(module) is nn.Linear and module.weight is head.weight else None

    return with_replaced(draft, replacement)


def frequent_tokens(texts: Iterable[Sequence[int]], count: int, always: Iterable[int] = ()) -> list[int]:
    """Return the ids of the ``count`` most frequent tokens, the most frequent first.

    Parameters
    ----------
    texts
        Token ids of texts, best ones that the target wrote.
    count
        How many tokens to return; fewer where the texts have fewer.
    always
        Ids to return in any case, such as the end of a text. They count among the ``count``.

    Examples
    --------
    >>> from hf_lossy_assist import frequent_tokens
    >>> frequent_tokens([[5, 7, 7], [7, 5, 3]], 3, always=[2])
    [2, 7, 5]
    """
    first = list(dict.fromkeys(always))
    bounded(max(1, len(first)), integer=True).check("count", count)
    seen = Counter(int(token) for text in texts for token in text)
    ranked = (token for token, _ in seen.most_common() if token not in first)
    return [*first, *ranked][:count]


def kept_tokens(model: nn.Module) -> int | None:
    """Return how many tokens :func:`trim_draft_vocabulary` left a model, if it did."""
    heads = (module for module in model.modules() if isinstance(module, FewTokensHead))
    return next((len(head.vocabulary.ids) for head in heads), None)
