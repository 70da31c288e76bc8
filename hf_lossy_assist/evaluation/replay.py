"""Replay: a rule decides along the target's own greedy texts, which draft and target have read once.

A token that it keeps wrongly counts as the text's own. For ``lossless`` the rounds are those of its own run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..acceptors import Acceptor, decide
from ..compat.models import device_of
from ..compat.processors import without_observers
from ..core.messages import Verification
from ..core.shapes import Chain
from ..drafting.vocabulary import vocabulary_of
from ..models.processing import process
from ..models.reading import logits_along

LIKELIEST, OUTSIDE = 48, 16
"""How many tokens of each model a position keeps; all others are as many equal tokens, so that none seems likely."""

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
    lengths
        ``(B,)`` tokens of each text.
    limit
        The number of tokens at which texts were cut.
    """

    p: Tensor
    q: Tensor
    best: Tensor
    lengths: Tensor
    limit: int

    @classmethod
    def of(cls, texts: Sequence[Mapping[str, Tensor]], limit: int) -> TextLogits:
        """Join texts that :func:`read_laws` has read."""
        stacked = {
            name: torch.nn.utils.rnn.pad_sequence([text[name] for text in texts], batch_first=True)
            for name in ("p", "q", "best")
        }
        return cls(**stacked, lengths=torch.tensor([len(text["best"]) for text in texts]), limit=limit)

    @property
    def real(self) -> Tensor:
        """``(B, T)`` which positions a text has."""
        return torch.arange(self.best.shape[1]) < self.lengths[:, None]

    def drafted(self, gamma: int, end: float = 0.0) -> Tensor:
        """Return ``(B, T)`` how many tokens a greedy draft has from each position on.

        It ends after ``gamma`` tokens, or with the token that takes Π q(xᵢ) below ``end``; it leaves room for a token
        of the target's own.
        """
        q = self.q.softmax(-1).gather(-1, self.best[..., None])[..., 0]
        at = torch.arange(q.shape[1])[:, None] + torch.arange(gamma)
        # A text's last value stands for those after its end.
        along = q[torch.arange(len(q))[:, None, None], at.minimum(self.lengths[:, None, None] - 1)]
        sure = along.cumprod(-1) >= end
        room = self.limit - 1 - torch.arange(q.shape[1])
        return (sure.sum(-1) + 1).minimum(room).clamp(0, gamma)


def read_laws(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: Sequence[int],
    answer: Sequence[int],
    processors: LogitsProcessorList,
) -> dict[str, Tensor]:
    """Return the fields of :class:`TextLogits` about one text ``(T, …)``, from one pass of each model over it.

    ``processors`` are those of ``generate()``, which draft and target share.
    """
    ids, start, parts = torch.tensor([[*prompt, *answer]]), len(prompt), []
    vocabulary = vocabulary_of(target, draft)
    said = logits_along(draft, vocabulary.context(ids), start)
    for p, q in zip(logits_along(target, ids, start), said, strict=True):
        end = start + p.shape[1]
        both = (p, vocabulary.logits(q))
        both = (process(processors, ids[:, :end], x, Chain(end - start, ids.device))[0] for x in both)
        parts.append(reduced(*both))
        start = end
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def reduced(p: Tensor, q: Tensor) -> dict[str, Tensor]:
    """Return the laws ``(n, C)`` of logits ``(n, V)`` over the likeliest tokens of both."""
    few = min(LIKELIEST, p.shape[-1])
    best = q.argmax(-1, keepdim=True)
    # Of equal logits the first one counts as the best, which `topk` does not promise.
    ids = torch.cat([p.argmax(-1, keepdim=True), p.topk(few).indices, best, q.topk(few).indices], dim=-1)
    twice = (ids[:, :, None] == ids[:, None, :]).tril(-1).any(-1)

    def law(full: Tensor) -> Tensor:
        own, norm = full.gather(-1, ids).masked_fill(twice, -torch.inf), full.logsumexp(-1, keepdim=True)
        rest = 1 - (own - norm).exp().sum(-1, keepdim=True)
        rest = torch.where(rest > _NONE, norm + rest.clamp(min=_NONE).log() - math.log(OUTSIDE), -torch.inf)
        return torch.cat([own, rest.expand(-1, OUTSIDE)], dim=-1)

    return {"p": law(p), "q": law(q), "best": (ids == best).int().argmax(-1)}


def processors_of(model: PreTrainedModel, prompt: Sequence[int]) -> LogitsProcessorList:
    """Return the logits processors that a greedy ``generate()`` makes of a model's configuration."""
    found = []

    def take(model: object, input_ids: Tensor, logits_processor: object = None, **_: object) -> Tensor:
        found.append(logits_processor)
        return input_ids

    ids = torch.tensor([list(prompt)], device=device_of(model))
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False, custom_generate=take)
    return without_observers(found[0])


@dataclass(frozen=True, eq=False)
class Walk:
    """What a rule with drafts of ``gamma`` tokens does on each text; arrays ``(B,)``."""

    gamma: int | str  # a number, or auto
    sizes: np.ndarray  # ``(B, γ + 1)`` rounds by the number of drafted tokens
    kept: np.ndarray  # drafted tokens
    others: np.ndarray  # kept ones that the lossless rule would have refused
    nats: np.ndarray  # what they have less log p than the best ones, in sum
    worst: np.ndarray  # the largest of these

    @property
    def rounds(self) -> np.ndarray:
        return self.sizes.sum(1)


@dataclass(frozen=True, eq=False)
class Acceptance:
    """How a rule decides every position on its own, arrays ``(B, T)``."""

    keep: np.ndarray  # whether the draft's token is kept
    others: np.ndarray  # whether it is, and the lossless rule would refuse it
    nats: np.ndarray  # the loss of log p then

    def walk(self, laws: TextLogits, gamma: int, end: float = 0.0) -> Walk:
        """Walk along the texts in rounds of ``gamma`` tokens, which may ``end`` as :meth:`TextLogits.drafted` says."""
        drafted, keep = laws.drafted(gamma, end).tolist(), self.keep.tolist()
        sizes, at = np.zeros((len(keep), gamma + 1)), np.zeros(self.keep.shape, dtype=bool)
        for row, length in enumerate(laws.lengths.tolist()):
            start = 0
            while start < length:
                size = drafted[row][start]
                stop = min(start + size, length)
                refused = next((i for i in range(start, stop) if not keep[row][i]), stop)
                sizes[row, size] += 1
                at[row, start:refused] = True
                start = refused + 1
        others = at & self.others
        nats = np.where(others, self.nats, 0.0)
        return Walk(gamma, sizes, at.sum(1), others.sum(1), nats.sum(1), nats.max(1))


def greedy(rule: Acceptor, laws: TextLogits) -> Acceptance:
    """Return how a rule decides the draft's likeliest token at every position."""
    decision = decide(rule, Verification(laws.best, torch.cat([laws.p, laws.p[:, -1:]], dim=1), draft_logits=laws.q))
    lost = laws.p.amax(-1) - laws.p.gather(-1, laws.best[..., None])[..., 0]
    found = decision.keep, decision.keep & ~decision.lossless, lost.double()
    return Acceptance(*(x.numpy() for x in found))
