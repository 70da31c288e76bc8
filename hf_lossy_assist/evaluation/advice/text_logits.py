"""What both models say along the target's own texts: the likeliest tokens of each position, and what is outside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ...compat import new_cache
from ...core.shapes import Chain
from ...drafting.vocabulary import Vocabulary, vocabulary_of
from ...models.processing import process
from ...models.reading import forward, only_last_logits

LIKELIEST, OUTSIDE = 48, 16
"""How many tokens of each model a position keeps; all others are as many equal tokens, so that none seems likely."""

CHUNK = 128  # positions that are read in one forward
_NONE = 1e-6  # of a probability that is only rounding


@dataclass(frozen=True, eq=False)
class TextLogits:
    """Both models' laws along texts of the target, which are rows padded to the longest.

    Tokens are named by their slots among a position's candidates, C in number.

    Attributes
    ----------
    p, q
        ``(B, T, C)`` processed logits of target and draft; ``-inf`` in slots that are not used.
    best
        ``(B, T)`` the draft's likeliest token.
    written
        ``(B, T)`` the text's own token.
    lengths
        ``(B,)`` tokens of each text.
    limit
        The number of tokens at which texts were cut.
    """

    p: Tensor
    q: Tensor
    best: Tensor
    written: Tensor
    lengths: Tensor
    limit: int

    @classmethod
    def of(cls, texts: Sequence[Mapping[str, Tensor]], limit: int) -> TextLogits:
        """Join texts that :func:`read_logits` has read."""
        stacked = {
            name: torch.nn.utils.rnn.pad_sequence([text[name] for text in texts], batch_first=True)
            for name in ("p", "q", "best", "written")
        }
        return cls(**stacked, lengths=torch.tensor([len(text["best"]) for text in texts]), limit=limit)

    @cached_property
    def real(self) -> Tensor:
        """``(B, T)`` which positions are of a text."""
        return torch.arange(self.best.shape[1]) < self.lengths[:, None]

    def drafted(self, gamma: int, end: float = 0.0) -> Tensor:
        """Return ``(B, T)`` how many tokens a greedy draft has from each position on.

        It ends after ``gamma`` tokens, or with the token that takes Π q(xᵢ) below ``end``; it leaves room for a token
        of the target's own.
        """
        rows, width = self.best.shape
        q = self.q.softmax(-1).gather(-1, self.best[..., None])[..., 0]
        sure = self.at(q, torch.zeros(rows, dtype=torch.long), width + gamma - 1).unfold(1, gamma, 1).cumprod(-1) >= end
        room = self.limit - 1 - torch.arange(width)
        return (sure.sum(-1) + 1).minimum(room).clamp(0, gamma)

    def at(self, values: Tensor, start: Tensor, count: int) -> Tensor:
        """Return ``(B, count, …)`` values from each row's ``start`` ``(B,)`` on; a text's last one stands for later."""
        index = (start[:, None] + torch.arange(count)).minimum(self.lengths[:, None] - 1)
        return values[torch.arange(len(values))[:, None], index]


@torch.inference_mode()
def read_logits(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: Sequence[int],
    answer: Sequence[int],
    processors: LogitsProcessorList,
) -> dict[str, Tensor]:
    """Return the fields of :class:`TextLogits` about one text ``(T, …)``, from one pass of each model over it.

    ``processors`` are those of ``generate()``, which draft and target share.
    """
    ids = torch.tensor([[*prompt, *answer]])
    both = zip(
        _positions(target, ids, len(prompt), processors),
        _positions(draft, ids, len(prompt), processors, vocabulary_of(target, draft)),
        strict=True,
    )
    parts, start = [], len(prompt)
    for p, q in both:
        parts.append(reduced(p, q, ids[0, start : start + len(p)]))
        start += len(p)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _positions(
    model: PreTrainedModel,
    ids: Tensor,
    prompt: int,
    processors: LogitsProcessorList,
    vocabulary: Vocabulary | None = None,
) -> Iterator[Tensor]:
    """Yield processed logits ``(n, V)`` of the tokens after the prompt, in chunks."""
    cache, length = new_cache(model), ids.shape[1]
    own = (ids if vocabulary is None else vocabulary.context(ids)).to(model.device)
    mask = torch.ones_like(own)
    if prompt > 1:
        forward(model, own[:, : prompt - 1], mask[:, : prompt - 1], cache, **only_last_logits(model))
    for start in range(prompt, length, CHUNK):
        end = min(start + CHUNK, length)
        logits = forward(model, own[:, start - 1 : end - 1], mask[:, : end - 1], cache).logits.float().cpu()
        logits = logits if vocabulary is None else vocabulary.logits(logits)
        yield process(processors, ids[:, :end], logits, Chain(end - start, ids.device))[0]


def reduced(p: Tensor, q: Tensor, written: Tensor) -> dict[str, Tensor]:
    """Return the laws ``(n, C)`` of logits ``(n, V)`` over the likeliest tokens of both, and the text's own."""
    few = min(LIKELIEST, p.shape[-1])
    best = q.argmax(-1, keepdim=True)
    # Of equal logits the first one counts as the best, which `topk` does not promise.
    found = [p.argmax(-1, keepdim=True), p.topk(few).indices, best, q.topk(few).indices, written[:, None]]
    ids = torch.cat(found, dim=-1)
    twice = (ids[:, :, None] == ids[:, None, :]).tril(-1).any(-1)

    def law(full: Tensor) -> Tensor:
        own, norm = full.gather(-1, ids).masked_fill(twice, -torch.inf), full.logsumexp(-1, keepdim=True)
        rest = 1 - (own - norm).exp().sum(-1, keepdim=True)
        rest = torch.where(rest > _NONE, norm + rest.clamp(min=_NONE).log() - math.log(OUTSIDE), -torch.inf)
        return torch.cat([own, rest.expand(-1, OUTSIDE)], dim=-1)

    def slot(token: Tensor) -> Tensor:
        return (ids == token).int().argmax(-1)

    return {"p": law(p), "q": law(q), "best": slot(best), "written": slot(written[:, None])}


def processors_of(model: PreTrainedModel, prompt: Sequence[int], **keywords: Any) -> LogitsProcessorList:
    """Return the logits processors that ``generate()`` makes of a model's configuration and ``keywords``."""
    found = []

    def take(model: Any, input_ids: Tensor, logits_processor: Any = None, **_: Any) -> Tensor:
        found.append(logits_processor)
        return input_ids

    ids = torch.tensor([list(prompt)], device=model.device)
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, custom_generate=take, **keywords)
    return found[0]
