"""The draft's own choices at every position of a response."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from torch import Tensor
from transformers import PreTrainedModel

from .choice import Choice, Greedy
from .prompt_results import Ids
from .reading import CachedText, read

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
    """Reads responses with the draft, and returns its choice at every position. Cached prefixes are not read again.

    ``choice`` is also the target's; ``tokens`` counts the tokens that the draft has read.
    """

    model: PreTrainedModel
    choice: Choice = field(default_factory=Greedy)
    tokens: int = 0

    def __post_init__(self) -> None:
        self._memories: dict[int, CachedText] = {}

    def forget(self, slot: int) -> None:
        """Free ``slot`` for another prompt."""
        self._memories.pop(slot, None)

    def guess(self, wanted: Sequence[DraftQuery]) -> Iterator[tuple[int, Ids]]:
        """Answer every request with its slot and the draft's tokens."""
        yield from ((one.slot, ()) for one in wanted if one.start >= len(one.response))
        jobs = [one for one in wanted if one.start < len(one.response)]
        # Texts with similarly long unread parts go together.
        jobs.sort(key=lambda one: len(one.response) - one.start)
        most = max(1, MOST_LOGITS // self.model.config.get_text_config(decoder=True).vocab_size)
        while jobs:
            batch = [jobs.pop()]
            longest = len(batch[0].prompt) + len(batch[0].response)
            while jobs and (len(batch) + 1) * longest <= most:
                batch.append(jobs.pop())
            yield from self._guess(batch)

    def _guess(self, batch: Sequence[DraftQuery]) -> Iterator[tuple[int, Ids]]:
        # No choice follows a response's last token.
        texts = [(*one.prompt, *one.response[:-1]) for one in batch]
        known = []
        for one, text in zip(batch, texts, strict=True):
            memory = self._memories.get(one.slot, CachedText())
            first = len(one.prompt) + one.start - 1
            known.append((memory, min(memory.common(text), first)))
        reading = read(self.model, texts, known)
        self.tokens += sum(len(text) - n for text, (_, n) in zip(texts, known, strict=True))
        for row, (one, text, memory) in enumerate(zip(batch, texts, reading.memories, strict=True)):
            self._memories[one.slot] = memory
            count = len(one.response) - one.start
            yield one.slot, self._choose(reading.logits[row, -count:], text, count)

    def _choose(self, logits: Tensor, text: Ids, count: int) -> Ids:
        first = len(text) - count + 1
        contexts = accumulate(text[first:], self.choice.extend, initial=self.choice.context(text[:first]))
        return tuple(self.choice.choose(logits.float(), [*contexts]))
