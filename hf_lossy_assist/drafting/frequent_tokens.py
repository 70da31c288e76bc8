"""Drafts that choose among a text's most frequent tokens only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import LossyUnsupportedError, LossyValueError
from ..models.quantised import check_changeable
from ..models.replacing import with_replaced
from .vocabulary import DraftVocabulary


class FewTokensHead(nn.Module):
    """An LM head that computes the logits of some tokens; all others have probability 0."""

    def __init__(self, head: nn.Linear, tokens: Tensor) -> None:
        super().__init__()
        self.vocabulary = DraftVocabulary(tokens, head.out_features)
        with torch.device("meta"):
            self.rows = nn.Linear(head.in_features, len(tokens), bias=head.bias is not None)
        self.rows.weight = _some(head.weight, tokens)
        if head.bias is not None:
            self.rows.bias = _some(head.bias, tokens)

    def forward(self, states: Tensor) -> Tensor:
        return self.vocabulary.logits(self.rows(states))

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
        When the draft's LM head is no plain linear layer in memory, or it is an EAGLE-3 head.

    Examples
    --------
    >>> from hf_lossy_assist import pairs, trim_draft_vocabulary
    >>> pair = pairs.load("arithmetic")
    >>> draft = trim_draft_vocabulary(pair.draft, range(10))
    >>> draft.lm_head.rows.out_features
    10
    """
    check_changeable(draft)
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
    if isinstance(count, bool) or not isinstance(count, int) or count < max(1, len(first)):
        raise LossyValueError(f"`count` has to be an int >= {max(1, len(first))}, but is {count!r}")
    seen = Counter(int(token) for text in texts for token in text)
    ranked = (token for token, _ in seen.most_common() if token not in first)
    return [*first, *ranked][:count]


def kept_tokens(model: nn.Module) -> int | None:
    """Return how many tokens :func:`trim_draft_vocabulary` left a model, if it did."""
    heads = (module for module in model.modules() if isinstance(module, FewTokensHead))
    return next((len(head.vocabulary.ids) for head in heads), None)
