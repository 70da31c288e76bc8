"""Choices of the next token: the likeliest one, or a draw that is a function of seed and prefix.

Also the draft's choices at every position of a response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from typing import Annotated

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.distributions import MIX, STEP, mixed, shifted
from ..models.reading import CachedText, grouped, read_text
from ..values import POSITIVE, Checked

Ids = tuple[int, ...]
"""The ids of a text's tokens."""

# The most logits of one forward: half a gigabyte in float32.
MOST_LOGITS = 1 << 27

_MASK = (1 << 64) - 1


class Choice:
    """Chooses next tokens: the likeliest. A *context* is a hash of a prefix that grows token by token; here it is 0."""

    def context(self, ids: Iterable[int]) -> int:
        return 0

    def extend(self, context: int, token: int) -> int:
        return context

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        """Return one token for each row of logits ``(N, V)``, whose prefix has the context."""
        return logits.argmax(-1).tolist()


@dataclass(frozen=True)
class GumbelMax(Checked, Choice):
    """``argmax_i log P(i | prefix) + Gumbel(seed, prefix)_i``: a draw from P that depends on seed and prefix alone.

    Garipov et al. 2025 (AutoJudge), appendix A. P is the softmax of the logits divided by the temperature. After equal
    prefixes target and draft get equal noise, so they rarely differ where their distributions agree.
    """

    seed: int
    temperature: Annotated[float, POSITIVE] = 1.0

    def context(self, ids: Iterable[int]) -> int:
        return reduce(self.extend, ids, _mix((self.seed + STEP) & _MASK))

    def extend(self, context: int, token: int) -> int:
        return _mix((context ^ ((token + 1) * STEP)) & _MASK)

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        scores = logits.to(torch.float64) / self.temperature
        return (scores + gumbel(contexts, logits.shape[-1], logits.device)).argmax(-1).tolist()


def gumbel(contexts: list[int], vocabulary: int, device: torch.device | str = "cpu") -> Tensor:
    """Return standard Gumbel draws ``(N, V)``, row i a function of ``contexts[i]`` alone.

    The j-th number of a row is SplitMix64's j-th output from that state, so all are computed at once.
    """
    signed = [context - (1 << 64) if context >> 63 else context for context in contexts]  # the same bits, as int64
    state = torch.tensor(signed, device=device)[:, None]
    counter = torch.arange(1, vocabulary + 1, device=device)[None]
    bits = mixed(state + counter * STEP)
    # 53 bits, kept away from 0 and 1. Small values become the large, exact tail of the Gumbel distribution.
    uniform = (shifted(bits, 11).to(torch.float64) + 0.5) * 2.0**-53
    return -torch.log(-torch.log1p(-uniform))


def _mix(x: int) -> int:
    """Scramble 64 bits as SplitMix64 does."""
    for shift, factor in MIX:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class DraftQuery:
    """A request for the draft's choices after ``prompt + response[:i]`` for every ``i >= start``."""

    slot: int
    prompt: Ids
    response: Ids
    start: int


@dataclass(eq=False)
class DraftArgmax:
    """Reads responses with the draft, and returns its choice at every position.

    It reads no cached prefix again, and what prompts share with the first one only once.

    ``choice`` is also the target's.
    """

    model: PreTrainedModel
    choice: Choice = field(default_factory=Choice)

    def __post_init__(self) -> None:
        self._memories: dict[int, CachedText] = {}
        self._first = CachedText()

    def forget(self, slot: int) -> None:
        """Free ``slot`` for another prompt."""
        self._memories.pop(slot, None)

    def guess(self, wanted: Sequence[DraftQuery]) -> Iterator[tuple[int, Ids]]:
        """Answer every request with its slot and the draft's tokens."""
        yield from ((one.slot, ()) for one in wanted if one.start >= len(one.response))
        jobs = [one for one in wanted if one.start < len(one.response)]
        most = MOST_LOGITS // self.model.config.get_text_config(decoder=True).vocab_size
        for batch in grouped(jobs, self._unread, most):
            yield from self._guess(batch)

    def _unread(self, one: DraftQuery) -> int:
        return len(one.prompt) + len(one.response) - self._known(one)[1]

    def _known(self, one: DraftQuery) -> tuple[CachedText, int]:
        """Return the memory that a text begins like, and how much of it to reuse; no choice follows the last token."""
        memory = self._memories.get(one.slot, self._first)
        first = len(one.prompt) + one.start - 1
        return memory, min(memory.common((*one.prompt, *one.response[:-1])), first)

    def _guess(self, batch: Sequence[DraftQuery]) -> Iterator[tuple[int, Ids]]:
        texts, known = [(*one.prompt, *one.response[:-1]) for one in batch], [self._known(one) for one in batch]
        most = max(len(one.response) - one.start for one in batch)
        reading = read_text(self.model, texts, known, last=most)
        for row, (one, text, memory) in enumerate(zip(batch, texts, reading.memories, strict=True)):
            self._memories[one.slot] = memory
            self._first = self._first if self._first.tokens else memory
            count = len(one.response) - one.start
            yield one.slot, self._choose(reading.logits[row, -count:], text, count)

    def _choose(self, logits: Tensor, text: Ids, count: int) -> Ids:
        first = len(text) - count + 1
        contexts = accumulate(text[first:], self.choice.extend, initial=self.choice.context(text[:first]))
        return tuple(self.choice.choose(logits.float(), [*contexts]))
