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
class _OpenText:
    ids: list[int]
    start: int
    context: int
    row: int | None = None


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
        self._prompts: dict[int, Ids] = {}
        self._counts: dict[int, ResponseCost] = {}
        # The next text begins like the current response or like the latest attempt to change it.
        self._memories: dict[int, list[CachedText]] = {}
        self._waiting: dict[int, _OpenText] = {}
        self._writing: dict[int, _OpenText] = {}
        self._done: list[tuple[int, Ids]] = []

    def begin(self, slot: int, prompt: Prompt) -> None:
        self._prompts[slot] = prompt.tokens
        self._memories[slot] = []
        self._counts[slot] = ResponseCost()

    def end(self, slot: int) -> ResponseCost:
        del self._prompts[slot], self._memories[slot]
        return self._counts.pop(slot)

    def submit(self, slot: int, prefix: Ids) -> None:
        if self.limits.over(prefix):
            self._done.append((slot, prefix))
            return
        prompt = self._prompts[slot]
        ids = [*prompt, *prefix]
        self._waiting[slot] = _OpenText(ids, len(prompt), self.choice.context(ids))

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
        for slot, text in self._waiting.items():
            best = max(self._memories[slot], key=lambda memory: memory.common(text.ids))
            self._memories[slot] = [best]
            text.row = self._free.pop()
            self._rows.put(text.row, best, len(text.ids) - 1)
            self._writing[slot] = text
        self._waiting = {}

    def _read_unknown(self) -> None:
        """Read what is in no cache, such as a new prompt."""
        unknown = {}
        for slot, text in self._waiting.items():
            wanted = text.ids[:-1]  # the first step reads the last token
            best = max(self._memories[slot], key=lambda memory: memory.common(wanted), default=CachedText())
            if best.common(wanted) < len(wanted) or not self._memories[slot]:
                unknown[slot] = (wanted, (best, best.common(wanted)))
        texts = [wanted for wanted, _ in unknown.values()]
        memories = [CachedText()] * len(texts)
        if any(texts):
            known = [known for _, known in unknown.values()]
            memories = read(self.model, texts, known, **only_last_logits(self.model)).memories
        for (slot, (wanted, (_, n))), memory in zip(unknown.items(), memories, strict=True):
            self._memories[slot].append(memory)
            self._counts[slot].target_tokens += len(wanted) - n

    def _write(self) -> None:
        self._shrink()
        tokens, active = [0] * self._rows.count, [False] * self._rows.count
        for text in self._writing.values():
            tokens[text.row], active[text.row] = text.ids[-1], True
        logits = self._rows.step(tokens, active)
        texts = list(self._writing.items())
        rows = [text.row for _, text in texts]
        chosen = self.choice.choose(logits[rows].float(), [text.context for _, text in texts])
        for (slot, text), token in zip(texts, chosen, strict=True):
            self._counts[slot].target_tokens += 1
            text.ids.append(token)
            text.context = self.choice.extend(text.context, token)
            if self.limits.ends(token) or len(text.ids) - text.start >= self.limits.max_new_tokens:
                self._finish(slot, text)

    def _finish(self, slot: int, text: _OpenText) -> None:
        self._memories[slot].append(self._rows.take(text.row, text.ids[:-1]))
        self._rows.clear(text.row)
        self._free.append(text.row)
        del self._writing[slot]
        self._done.append((slot, tuple(text.ids[text.start :])))

    def _shrink(self) -> None:
        """Drop rows once half of them have no prompt left."""
        if 2 * len(self._prompts) > self._rows.count:
            return
        used = [text.row for text in self._writing.values()]
        kept = used + self._free[: len(self._prompts) - len(used)]
        self._rows.keep(kept)
        self._free = list(range(len(used), len(kept)))
        for row, text in enumerate(self._writing.values()):
            text.row = row
