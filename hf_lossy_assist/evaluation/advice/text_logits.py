"""What both models say along the target's own texts: the likeliest tokens of each position, and what is outside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ...compat import new_cache, without_observers
from ...core.shapes import Chain
from ...drafting.model import NO_END
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

    Tokens are named by their slots among a position's candidates, C in number. A draft's k-th token is of step k, the
    last of K steps stands for later ones: a draft model's law at a position is that of every step, so K is 1.

    Attributes
    ----------
    p, q
        ``(B, T, K, C)`` processed logits of target and draft; ``-inf`` in slots that are not used.
    best
        ``(B, T, K)`` the draft's likeliest token.
    written
        ``(B, T, K)`` the text's own token.
    counts
        ``(B, T)`` the most tokens of a draft from a position on.
    lengths
        ``(B,)`` tokens of each text.
    limit
        The number of tokens at which texts were cut.
    """

    p: Tensor
    q: Tensor
    best: Tensor
    written: Tensor
    counts: Tensor
    lengths: Tensor
    limit: int
    alone: ClassVar[bool] = True  # whether a position can be decided without the rounds before

    @classmethod
    def of(cls, texts: Sequence[Mapping[str, Tensor]], limit: int) -> TextLogits:
        """Join texts that :func:`read_logits` or :func:`read_drafts` has read."""
        stacked = {
            name: torch.nn.utils.rnn.pad_sequence([text[name] for text in texts], batch_first=True)
            for name in ("p", "q", "best", "written", "counts")
        }
        return cls(**stacked, lengths=torch.tensor([len(text["best"]) for text in texts]), limit=limit)

    @cached_property
    def real(self) -> Tensor:
        """``(B, T, K)`` which positions of a text a draft's token of each step can stand at."""
        width, steps = self.best.shape[1:]
        start = torch.arange(width)[:, None] - torch.arange(steps)
        drafted = (start >= 0) & (self.counts[:, start.clamp(min=0)] > torch.arange(steps))
        return drafted & (torch.arange(width) < self.lengths[:, None])[..., None]

    def along(self, values: Tensor, gamma: int) -> Tensor:
        """Return ``(B, T, γ)`` the ``values`` ``(B, T, K)`` of the tokens of a draft from each position on.

        A text's last value stands for those after its end.
        """
        width, steps = values.shape[1:]
        k = torch.arange(gamma)
        at = (torch.arange(width)[:, None] + k).minimum(self.lengths[:, None, None] - 1)
        return values[torch.arange(len(values))[:, None, None], at, k.clamp(max=steps - 1)]

    def drafted(self, gamma: int, end: float = 0.0) -> Tensor:
        """Return ``(B, T)`` how many tokens a greedy draft has from each position on.

        It ends after ``gamma`` tokens, or with the token that takes Π q(xᵢ) below ``end``; it leaves room for a token
        of the target's own.
        """
        q = self.q.softmax(-1).gather(-1, self.best[..., None])[..., 0]
        sure = self.along(q, gamma).cumprod(-1) >= end
        room = self.limit - 1 - torch.arange(q.shape[1])
        return (sure.sum(-1) + 1).minimum(room).minimum(self.counts).clamp(0, gamma)

    def at(self, values: Tensor, start: Tensor, count: int) -> Tensor:
        """Return ``(B, count, …)`` values of a draft from each row's ``start`` ``(B,)`` on.

        A text's last value stands for those after its end.
        """
        k = torch.arange(count)
        index = (start[:, None] + k).minimum(self.lengths[:, None] - 1)
        return values[torch.arange(len(values))[:, None], index, k.clamp(max=values.shape[2] - 1)]

    @property
    def by_draft(self) -> TextLogits:
        """The laws of the draft, where it drafts."""
        return self

    def drafts(self, copies: int, gamma: int) -> Drafts:
        """Begin drafts of up to ``gamma`` tokens, in so many copies of each text."""
        names = ("p", "q", "best", "written", "counts", "lengths")
        copied = {name: getattr(self, name).repeat_interleave(copies, 0) for name in names}
        return Drafts(replace(self, **copied), gamma)


class Drafts:
    """The drafts of a walk, round by round, in all rows together.

    Attributes
    ----------
    lengths
        ``(B,)`` tokens of each row's text.
    sizes, looked_up
        ``(B, n + 1)`` rounds so far by the number of tokens that were drafted, and that were looked up instead.
    """

    def __init__(self, laws: TextLogits, gamma: int) -> None:
        self.laws, self.gamma, self.lengths = laws, gamma, laws.lengths
        self.sizes = torch.zeros(len(laws.lengths), gamma + 1, dtype=torch.float64)
        self.looked_up = torch.zeros(len(laws.lengths), 1, dtype=torch.float64)

    def after(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return p ``(B, n + 1, C)``, q ``(B, n, C)``, best and written ``(B, n)`` from ``start`` ``(B,)`` on.

        The last ``(B,)`` is the most tokens that drafts have there.
        """
        laws = self.laws
        most = laws.at(laws.counts[..., None], start, 1)[:, 0].clamp(max=self.gamma)
        others = (laws.at(x, start, self.gamma) for x in (laws.q, laws.best, laws.written))
        return laws.at(laws.p, start, self.gamma + 1), *others, most

    def observe(self, drafted: Tensor, kept: Tensor, alive: Tensor) -> None:
        """Note how many tokens each row has drafted and kept, if it is ``alive``."""
        self.sizes += rounds_of(drafted, alive, self.sizes)


def rounds_of(drafted: Tensor, counted: Tensor, sizes: Tensor) -> Tensor:
    """Return one round of so many ``drafted`` tokens in each row that is ``counted``, like ``sizes``."""
    return torch.nn.functional.one_hot(drafted, sizes.shape[1]) * counted[:, None]


@torch.inference_mode()
def read_logits(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: Sequence[int],
    answer: Sequence[int],
    processors: LogitsProcessorList,
) -> dict[str, Tensor]:
    """Return the fields of :class:`TextLogits` about one text ``(T, 1, …)``, from one pass of each model over it.

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
    read = {name: torch.cat([part[name] for part in parts])[:, None] for name in parts[0]}
    return read | {"counts": torch.full((len(answer),), NO_END)}


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
    return without_observers(found[0])
