"""Replay: a rule decides along the target's own texts, and a token that it keeps wrongly counts as the text's own.

Draft and target read the texts once. When sampling, nothing is drawn: decisions are averaged over the draft's law and
over u. What a rule keeps is coupled with the text as closely as possible: where it would emit the text's own token, it
has kept that; else it has kept a wrong one with the probability that is left. For ``lossless`` this is the law of its
own rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ...acceptors import Acceptor, decide
from ...compat.processors import without_observers
from ...core.distributions import Randomness, total_variation
from ...core.messages import Verification
from ...core.shapes import Chain
from ...drafting.vocabulary import vocabulary_of
from ...models.processing import process
from ...models.reading import logits_along

LIKELIEST, OUTSIDE = 48, 16
"""How many tokens of each model a position keeps; all others are as many equal tokens, so that none seems likely."""

POSITIONS = 64
"""How many positions' laws are computed together."""
LEAST, ALMOST_1, TINY = 1e-6, 1 - 2**-24, 1e-30
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
        """Join texts that :func:`read_laws` has read."""
        stacked = {
            name: torch.nn.utils.rnn.pad_sequence([text[name] for text in texts], batch_first=True)
            for name in ("p", "q", "best", "written")
        }
        return cls(**stacked, lengths=torch.tensor([len(text["best"]) for text in texts]), limit=limit)

    @property
    def real(self) -> Tensor:
        """``(B, T)`` which positions a text has."""
        return torch.arange(self.best.shape[1]) < self.lengths[:, None]

    def along(self, values: Tensor, gamma: int) -> Tensor:
        """Return ``(B, T, γ)`` the ``values`` ``(B, T)`` of the tokens of a draft from each position on.

        A text's last value stands for those after its end.
        """
        at = torch.arange(values.shape[1])[:, None] + torch.arange(gamma)
        return values[torch.arange(len(values))[:, None, None], at.minimum(self.lengths[:, None, None] - 1)]

    def drafted(self, gamma: int, end: float = 0.0) -> Tensor:
        """Return ``(B, T)`` how many tokens a greedy draft has from each position on.

        It ends after ``gamma`` tokens, or with the token that takes Π q(xᵢ) below ``end``; it leaves room for a token
        of the target's own.
        """
        q = self.q.softmax(-1).gather(-1, self.best[..., None])[..., 0]
        sure = self.along(q, gamma).cumprod(-1) >= end
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
        parts.append(reduced(*both, ids[0, start:end]))
        start = end
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


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


def processors_of(model: PreTrainedModel, prompt: Sequence[int], **keywords: object) -> LogitsProcessorList:
    """Return the logits processors that ``generate()`` makes of a model's configuration and ``keywords``."""
    found = []

    def take(model: object, input_ids: Tensor, logits_processor: object = None, **_: object) -> Tensor:
        found.append(logits_processor)
        return input_ids

    ids = torch.tensor([list(prompt)], device=model.device)
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, custom_generate=take, **keywords)
    return without_observers(found[0])


@dataclass(frozen=True, eq=False)
class Walk:
    """What a rule with drafts of ``gamma`` tokens does on each text; arrays ``(B,)``, expected values when sampling."""

    gamma: int | str  # a number, or auto
    sizes: np.ndarray  # ``(B, γ + 1)`` rounds by the number of drafted tokens
    kept: np.ndarray  # drafted tokens
    others: np.ndarray  # kept ones that the lossless rule would have refused
    nats: np.ndarray  # what they have less log p than the best ones, in sum
    worst: np.ndarray  # the largest of these

    @property
    def rounds(self) -> np.ndarray:
        return self.sizes.sum(1)

    @property
    def diverged(self) -> np.ndarray:
        """``(B,)`` the share of each text that follows its first other token, if those stand anywhere alike."""
        return self.others / (self.others + 1)


@dataclass(frozen=True, eq=False)
class Acceptance:
    """How a rule decides every position on its own, arrays ``(B, T)``."""

    keep: np.ndarray  # the probability that a drafted token is kept, given the text's own token
    others: np.ndarray  # the probability that it is, and the lossless rule would refuse it
    nats: np.ndarray  # the loss of log p then

    def walk(self, laws: TextLogits, gamma: int, end: float = 0.0) -> Walk:
        """Walk along the texts in rounds of ``gamma`` tokens; a round may start anywhere, with some probability.

        A greedy draft may ``end`` as :meth:`TextLogits.drafted` says.
        """
        rows, width = self.keep.shape
        real = np.arange(width + gamma) < laws.lengths.numpy()[:, None]
        drafted = laws.drafted(gamma, end).numpy()
        each = laws.along(torch.from_numpy(self.keep), gamma).numpy()
        inside = np.lib.stride_tricks.sliding_window_view(real, gamma, axis=1)[:, :width]
        each = np.where(inside & (np.arange(gamma) < drafted[..., None]), each, 0.0)
        # reached[b, s, k]: the first k tokens of a draft from s on are kept.
        reached = np.concatenate([np.ones((rows, width, 1)), each.cumprod(-1)], axis=-1)
        exactly = reached - np.concatenate([reached[..., 1:], np.zeros((rows, width, 1))], axis=-1)
        starts = np.zeros((rows, width + gamma + 1))
        starts[:, 0] = 1.0
        for s in range(width):
            starts[:, s + 1 : s + gamma + 2] += starts[:, s, None] * exactly[:, s]
        starts = np.where(real, starts[:, : width + gamma], 0.0)[:, :width]
        at = np.zeros((rows, width + gamma))  # the probability that a position's drafted token is kept
        for k in range(gamma):
            at[:, k : k + width] += starts * reached[..., k + 1]
        share = np.divide(self.others, self.keep, out=np.zeros_like(self.others), where=self.keep > 0)
        others = at[:, :width] * share
        worst = np.where(others > 0.01, self.nats, 0.0).max(1)
        sizes = np.stack([(starts * (drafted == size)).sum(1) for size in range(gamma + 1)], axis=1)
        return Walk(gamma, sizes, at[:, :width].sum(1), others.sum(1), (others * self.nats).sum(1), worst)


def greedy(rule: Acceptor, laws: TextLogits) -> Acceptance:
    """Return how a rule decides the draft's likeliest token at every position."""
    decision = decide(rule, Verification(laws.best, torch.cat([laws.p, laws.p[:, -1:]], dim=1), draft_logits=laws.q))
    lost = laws.p.amax(-1) - laws.p.gather(-1, laws.best[..., None])[..., 0]
    found = decision.keep, decision.keep & ~decision.lossless, lost
    return Acceptance(*(x.double().numpy() for x in found))


def drawn(rule: Acceptor, laws: TextLogits) -> tuple[Acceptance, dict[str, float]]:
    """Return how a rule decides drawn tokens, each on its own, and its mean losses over all positions."""
    keep, others = np.zeros(laws.real.shape), np.zeros(laws.real.shape)
    real = [x.numpy() for x in laws.real.nonzero(as_tuple=True)]
    sums: dict[str, float] = {}
    for start in range(0, len(real[0]), POSITIONS):
        at = tuple(x[start : start + POSITIONS] for x in real)
        law = emitted(rule, laws.p[at], laws.q[at])
        own = law.coupled(laws.written[at])
        keep[at] = own.double().numpy()
        others[at] = (own * law.lossy / law.kept.sum(-1).clamp(min=TINY)).double().numpy()
        for name, values in law.losses().items():
            sums[name] = sums.get(name, 0.0) + float(values.sum())
    losses = {name: total / len(real[0]) for name, total in sums.items()}
    return Acceptance(keep, others, np.zeros_like(keep)), losses


@dataclass(frozen=True, eq=False)
class Emitted:
    """What a rule emits at positions that it decides, exactly; ``(N, C)`` but for ``lossy`` ``(N,)``."""

    p: Tensor
    kept: Tensor  # the mass of each token that was drafted and kept
    replaced: Tensor  # the mass of each token that replaces a rejected one
    lossy: Tensor  # the probability that a token is kept, and the lossless rule refuses it

    def losses(self) -> dict[str, Tensor]:
        """Return ``(N,)`` by name: total variation to p, KL divergence where p allows, and the mass elsewhere."""
        law, allowed = self.kept + self.replaced, self.p > 0
        inside = law * allowed
        inside = inside / inside.sum(-1, keepdim=True).clamp(min=TINY)
        return {
            "tv": total_variation(law, self.p),
            "kl": torch.xlogy(inside, inside / self.p.clamp(min=TINY)).sum(-1).clamp(min=0),
            "outside": (law * ~allowed).sum(-1),
        }

    def coupled(self, written: Tensor) -> Tensor:
        """Return ``(N,)`` the probability that a token is kept, given the text's own token."""
        shared = self.kept.minimum(self.p)
        own = (shared / self.p.clamp(min=TINY)).gather(-1, written[:, None])[:, 0]
        left = (1 - shared.sum(-1)).clamp(min=TINY)
        return own + (1 - own) * ((self.kept - shared).sum(-1) / left).clamp(max=1)


def emitted(rule: Acceptor, p: Tensor, q: Tensor) -> Emitted:
    """Return the law that a rule emits where the models have logits ``p`` and ``q`` ``(N, C)``."""
    of_p, of_q = p.softmax(-1), q.softmax(-1)
    at, x = (of_q > LEAST).nonzero(as_tuple=True)
    mass = of_q[at, x]
    mass = mass / mass.new_zeros(len(p)).index_add(0, at, mass)[at]

    def verification(rows: Tensor, u: Tensor) -> Verification:
        both = p[at[rows], None].expand(-1, 2, -1)
        return Verification(x[rows, None], both, q[at[rows], None], True, Given(u[:, None]))

    every = torch.arange(len(at))
    first = verification(every, mass.new_zeros(len(at)))
    surely = rule.keep(verification(every, mass.new_full((len(at),), ALMOST_1)))[:, 0]
    low = surely.float()
    open_ = every[rule.keep(first)[:, 0] & ~surely]
    # A rule keeps a token for all u up to some bound.
    step = mass.new_tensor(0.5)
    while len(open_) and step > 2**-22:
        higher = low[open_] + step
        low[open_] = torch.where(rule.keep(verification(open_, higher))[:, 0], higher, low[open_])
        step = step / 2
    weights = rule.correction(first, torch.zeros(len(at), dtype=torch.long))
    weights = weights / weights.sum(-1, keepdim=True)
    kept = torch.zeros_like(p).index_put((at, x), mass * low, accumulate=True)
    replaced = torch.zeros_like(p).index_add(0, at, (mass * (1 - low))[:, None] * weights)
    lossless = (of_p[at, x] / of_q[at, x]).clamp(max=1)
    lossy = mass.new_zeros(len(p)).index_add(0, at, mass * (low - lossless).clamp(min=0))
    return Emitted(of_p, kept, replaced, lossy)


class Given(Randomness):
    """Random numbers that are known beforehand; all else is drawn from a seed."""

    def __init__(self, u: Tensor) -> None:
        super().__init__(0)
        self.u = u

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        return self.u
