"""Completions of many responses at a time by a target in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import PreTrainedModel

from .choice import Choice, Greedy
from .prompt_results import Ids, Prompt
from .reading import CachedText, only_last_logits, read
from .row_batch import RowBatch
from .writing import ResponseCost, ResponseLimits, Writer


@dataclass(eq=False)
class _Slot:
    """A prompt, and the text that is being written to it."""

    number: int
    prompt: Ids
    cost: ResponseCost
    # The next text begins like the current response or like the latest attempt to change it.
    memories: list[CachedText] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    context: int = 0
    row: int = -1


@dataclass(eq=False)
class LocalWriter(Writer):
    """A writer with a model in this process: one token of every text per step.

    Each slot keeps the cache of its best known prefix, so the cost of a continuation does not depend on the length of
    the text before it.
    """

    model: PreTrainedModel
    slots: int
    limits: ResponseLimits
    choice: Choice = field(default_factory=Greedy)

    def __post_init__(self) -> None:
        self.close()

    def close(self) -> None:
        self._rows = RowBatch(self.model, self.slots)
        self._free = list(range(self.slots))
        self._slots: dict[int, _Slot] = {}
        self._waiting: list[_Slot] = []
        self._writing: list[_Slot] = []
        self._done: list[tuple[int, Ids]] = []

    def begin(self, slot: int, prompt: Prompt, cost: ResponseCost) -> None:
        self._slots[slot] = _Slot(slot, prompt.tokens, cost)

    def end(self, slot: int) -> None:
        del self._slots[slot]

    def submit(self, slot: int, prefix: Ids) -> None:
        if self.limits.over(prefix):
            self._done.append((slot, prefix))
            return
        text = self._slots[slot]
        text.ids = [*text.prompt, *prefix]
        text.context = self.choice.context(text.ids)
        self._waiting.append(text)

    def busy(self) -> bool:
        return bool(self._waiting or self._writing or self._done)

    def step(self) -> list[tuple[int, Ids]]:
        self._start_waiting()
        if self._writing:
            self._write()
        done, self._done = self._done, []
        return done

    def _start_waiting(self) -> None:
        self._read_unknown()
        for slot in self._waiting:
            best = max(slot.memories, key=lambda memory: memory.common(slot.ids))
            slot.memories = [best]
            slot.row = self._free.pop()
            self._rows.put(slot.row, best, len(slot.ids) - 1)
        self._writing += self._waiting
        self._waiting = []

    def _read_unknown(self) -> None:
        """Read what is in no cache, such as a new prompt."""
        unknown = []
        for slot in self._waiting:
            wanted = slot.ids[:-1]  # the first step reads the last token
            best = max(slot.memories, key=lambda memory: memory.common(wanted), default=CachedText())
            if best.common(wanted) < len(wanted) or not slot.memories:
                unknown.append((slot, wanted, (best, best.common(wanted))))
        texts = [wanted for _, wanted, _ in unknown]
        memories = [CachedText()] * len(texts)
        if any(texts):
            known = [known for _, _, known in unknown]
            memories = read(self.model, texts, known, **only_last_logits(self.model)).memories
        for (slot, wanted, (_, n)), memory in zip(unknown, memories, strict=True):
            slot.memories.append(memory)
            slot.cost.target_tokens += len(wanted) - n

    def _write(self) -> None:
        self._shrink()
        tokens, active = [0] * self._rows.count, [False] * self._rows.count
        for slot in self._writing:
            tokens[slot.row], active[slot.row] = slot.ids[-1], True
        logits = self._rows.step(tokens, active)[[slot.row for slot in self._writing]]
        chosen = self.choice.choose(logits.float(), [slot.context for slot in self._writing])
        for slot, token in zip([*self._writing], chosen, strict=True):
            slot.cost.target_tokens += 1
            slot.ids.append(token)
            slot.context = self.choice.extend(slot.context, token)
            if self.limits.ends(token) or len(slot.ids) - len(slot.prompt) >= self.limits.max_new_tokens:
                self._finish(slot)

    def _finish(self, slot: _Slot) -> None:
        slot.memories.append(self._rows.take(slot.row, slot.ids[:-1]))
        self._rows.clear(slot.row)
        self._free.append(slot.row)
        self._writing.remove(slot)
        self._done.append((slot.number, tuple(slot.ids[len(slot.prompt) :])))

    def _shrink(self) -> None:
        """Drop rows once half of them have no prompt left."""
        if 2 * len(self._slots) > self._rows.count:
            return
        used = [slot.row for slot in self._writing]
        kept = used + self._free[: len(self._slots) - len(used)]
        self._rows.keep(kept)
        self._free = list(range(len(used), len(kept)))
        for row, slot in enumerate(self._writing):
            slot.row = row
