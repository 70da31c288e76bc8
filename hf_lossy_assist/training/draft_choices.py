"""The draft's choices at every position of a response."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from torch import Tensor
from transformers import PreTrainedModel

from ..models.reading import CachedText, grouped, only_last_logits, read
from .choice import Choice, Greedy
from .prompts import Ids

# The most logits of one forward: half a gigabyte in float32.
MOST_LOGITS = 1 << 27


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

    ``choice`` is also the target's; ``tokens`` counts the tokens that the draft has read.
    """

    model: PreTrainedModel
    choice: Choice = field(default_factory=Greedy)
    tokens: int = 0

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
        reading = read(self.model, texts, known, **only_last_logits(self.model, most))
        self.tokens += sum(len(text) - n for text, (_, n) in zip(texts, known, strict=True))
        for row, (one, text, memory) in enumerate(zip(batch, texts, reading.memories, strict=True)):
            self._memories[one.slot] = memory
            self._first = self._first if self._first.tokens else memory
            count = len(one.response) - one.start
            yield one.slot, self._choose(reading.logits[row, -count:], text, count)

    def _choose(self, logits: Tensor, text: Ids, count: int) -> Ids:
        first = len(text) - count + 1
        contexts = accumulate(text[first:], self.choice.extend, initial=self.choice.context(text[:first]))
        return tuple(self.choice.choose(logits.float(), [*contexts]))
