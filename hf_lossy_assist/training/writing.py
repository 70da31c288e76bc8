"""Prompts, and writers of responses: with a model in this process, many texts at a time, or with one behind an API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..compat.caches import new_cache
from ..compat.models import device_of
from ..errors import LossyServiceError, LossyValueError
from ..models.reading import CachedText, Known, cached_text, filled, forward, remembered
from ..tasks import Example, Task
from ..tasks.api_model import ApiModel
from .choice import Choice, Ids


class RowBatch:
    """A batch of texts that grow by one token per step, and come and go between steps, each by a key."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._texts: dict[int, list[int]] = {}  # of each row
        self._new: dict[int, Known] = {}
        self._cache = new_cache(model)

    def put(self, key: int, memory: CachedText, n: int) -> None:
        """Add the first ``n`` tokens of a text that the model has read; the next step has to go on with it."""
        self._new[key] = memory, n

    @torch.inference_mode()
    def remove(self, key: int) -> CachedText:
        """Return a text, with which the next step does not go on."""
        return cached_text(self._cache, [*self._texts].index(key), self._texts[key])

    @torch.inference_mode()
    def step(self, tokens: Mapping[int, int]) -> Tensor:
        """Append a token to every text, by key, and return the next token's logits ``(N, V)`` in the same order.

        Texts without a token are forgotten.
        """
        if self._new or [*tokens] != [*self._texts]:
            known = {key: self._new.get(key) or (self.remove(key), len(self._texts[key])) for key in tokens}
            self._cache = filled(self.model, [*known.values()])
            self._texts, self._new = {key: [*memory.tokens[:n]] for key, (memory, n) in known.items()}, {}
        lengths = torch.tensor([len(text) for text in self._texts.values()])
        width = int(lengths.max())
        mask = (torch.arange(width + 1) >= width - lengths[:, None]).long()
        ids, device = torch.tensor([*tokens.values()])[:, None], device_of(self.model)
        logits = forward(self.model, ids.to(device), mask.to(device), self._cache).logits[:, -1]
        for key, token in tokens.items():
            self._texts[key].append(token)
        return logits


_PATIENCE = 0.1  # seconds that a step waits for a completion; meanwhile the draft and the task are not served


@dataclass(frozen=True)
class Prompt:
    """A prompt; ``id`` is its place among the task's examples."""

    id: int
    example: Example
    tokens: Ids


@dataclass(frozen=True)
class ResponseLimits:
    """The tokens and the length (T_max) that end a response."""

    eos: frozenset[int]
    max_new_tokens: int

    def over(self, response: Sequence[int]) -> bool:
        return len(response) >= self.max_new_tokens or bool(response and response[-1] in self.eos)


@dataclass(eq=False)
class _Slot:
    """A prompt, and the text that is being written to it."""

    number: int
    prompt: Ids
    cost: int = 0  # tokens that the model has read for it
    # The next text begins like the current response or like the latest attempt to change it.
    memories: list[CachedText] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    context: int = 0

    @property
    def response(self) -> Ids:
        return tuple(self.ids[len(self.prompt) :])


@dataclass(eq=False)
class LocalWriter:
    """Completes responses with a model in this process: one token of every text per step.

    Each prompt at work has a *slot*; several are served at once.

    Each slot keeps the cache of its best known prefix, so the cost of a continuation does not depend on the length of
    the text before it. What prompts have in common with the first one is read once.
    """

    model: PreTrainedModel
    limits: ResponseLimits
    choice: Choice = field(default_factory=Choice)

    def __post_init__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give up incomplete responses."""
        self._rows = RowBatch(self.model)
        self._slots: dict[int, _Slot] = {}
        self._waiting: list[_Slot] = []
        self._writing: list[_Slot] = []
        self._shared = CachedText()

    def begin(self, slot: int, prompt: Prompt) -> None:
        """Give a free ``slot`` to a prompt."""
        self._slots[slot] = _Slot(slot, prompt.tokens)

    def end(self, slot: int) -> int:
        """Free ``slot``, and return how many tokens the model has read for its prompt."""
        return self._slots.pop(slot).cost

    def submit(self, slot: int, prefix: Ids) -> None:
        """Request the rest of a response that begins with ``prefix`` and is not over."""
        text = self._slots[slot]
        text.ids = [*text.prompt, *prefix]
        text.context = self.choice.context(text.ids)
        self._waiting.append(text)

    def step(self) -> list[tuple[int, Ids]]:
        """Work for a while, and return each slot whose response is complete, with the response."""
        self._start_waiting()
        return self._write() if self._writing else []

    def _start_waiting(self) -> None:
        """Give every waiting text a row; first read texts without a cache, such as new prompts."""
        unread: list[tuple[_Slot, CachedText, int]] = []
        new = [slot for slot in self._waiting if not slot.memories]
        if new and not self._shared.tokens and (text := new[0].ids[:-1]):
            (self._shared,) = remembered(self.model, [text])
            new[0].cost += len(text)
        for slot in new:
            slot.memories = [self._shared]
        for slot in self._waiting:
            best = max(slot.memories, key=lambda memory: memory.common(slot.ids), default=CachedText())
            n = min(best.common(slot.ids), len(slot.ids) - 1)  # the first step reads the last token
            if n < len(slot.ids) - 1:
                unread.append((slot, best, n))
            slot.memories = [best]
        memories = remembered(self.model, [slot.ids[:-1] for slot, *_ in unread], [known for _, *known in unread])
        for (slot, _, n), memory in zip(unread, memories, strict=True):
            slot.memories = [memory]
            slot.cost += len(memory.tokens) - n
        for slot in self._waiting:
            self._rows.put(slot.number, slot.memories[0], len(slot.ids) - 1)
        self._writing += self._waiting
        self._waiting = []

    def _write(self) -> list[tuple[int, Ids]]:
        done = []
        logits = self._rows.step({slot.number: slot.ids[-1] for slot in self._writing})
        chosen = self.choice.choose(logits.float(), [slot.context for slot in self._writing])
        for slot, token in zip([*self._writing], chosen, strict=True):
            slot.cost += 1
            slot.ids.append(token)
            slot.context = self.choice.extend(slot.context, token)
            if self.limits.over(slot.response):
                slot.memories = [slot.memories[0], self._rows.remove(slot.number)]
                self._writing.remove(slot)
                done.append((slot.number, slot.response))
        return done


@dataclass(frozen=True, eq=False)
class PromptText:
    """A prompt as the text for the server and as the draft's tokens; converts responses between both."""

    tokenizer: PreTrainedTokenizerBase
    text: str
    tokens: Ids

    @classmethod
    def of(cls, prompt: Prompt, task: Task, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        text = task.render(prompt.example, tokenizer)
        bos = tokenizer.bos_token
        # If both template and tokenizer write a BOS, the server's tokenizer adds it.
        if bos and text.startswith(bos) and tokenizer(text)["input_ids"][:2] == [tokenizer.bos_token_id] * 2:
            text = text.removeprefix(bos)
        return cls(tokenizer, text, prompt.tokens)

    def write(self, prefix: Ids) -> str:
        """Return the text of prompt and ``prefix``, which has to end with a whole character."""
        before, after = (
            self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            for ids in (self.tokens, (*self.tokens, *prefix))
        )
        if not after.startswith(before) or after.endswith("\ufffd"):
            raise LossyValueError("a token is only a part of a character, which can't be sent to a server as text")
        return self.text + after.removeprefix(before)

    def read(self, prefix: Ids, addition: str) -> Ids:
        """Return the response's tokens, the ``prefix`` first."""
        text = self.write(prefix) + addition
        before = (*self.tokens, *prefix)
        ids = tuple(self.tokenizer(text)["input_ids"])
        if ids[: len(before)] == before:
            return ids[len(self.tokens) :]
        return (*prefix, *self.tokenizer(addition, add_special_tokens=False)["input_ids"])


@dataclass(eq=False)
class ApiWriter:
    """Completes responses as :class:`LocalWriter` does, by up to ``slots`` requests at once to a server.

    A response that the server ends gets the tokenizer's EOS.
    """

    model: ApiModel
    task: Task
    tokenizer: PreTrainedTokenizerBase
    limits: ResponseLimits
    slots: int

    def __post_init__(self) -> None:
        self._slots: dict[int, PromptText] = {}
        self._costs: dict[int, int] = {}
        self._open: dict[Future[tuple[str, bool]], tuple[int, Ids]] = {}
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="target-api")

    def begin(self, slot: int, prompt: Prompt) -> None:
        self._slots[slot], self._costs[slot] = PromptText.of(prompt, self.task, self.tokenizer), 0

    def end(self, slot: int) -> int:
        return self._costs.pop(slot)

    def submit(self, slot: int, prefix: Ids) -> None:
        room = self.limits.max_new_tokens - len(prefix)
        future = self._pool.submit(self.model.complete, self._slots[slot].write(prefix), room)
        self._open[future] = (slot, prefix)

    def step(self) -> list[tuple[int, Ids]]:
        finished, _ = wait(self._open, _PATIENCE, return_when=FIRST_COMPLETED)
        return [self._response(*self._open.pop(future), future) for future in finished]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.model.client.close()

    def _response(self, slot: int, prefix: Ids, future: Future[tuple[str, bool]]) -> tuple[int, Ids]:
        try:
            text, ended = future.result()
        except LossyServiceError as error:
            raise LossyServiceError(f"{error}; what was mined is kept: the same command goes on from there") from error
        prompt = self._slots[slot]
        response = (*prompt.read(prefix, text), *([self.tokenizer.eos_token_id] if ended else []))
        response = response[: self.limits.max_new_tokens]
        self._costs[slot] += len(prompt.tokens) + len(response) - 1
        return slot, response


Writer = LocalWriter | ApiWriter
