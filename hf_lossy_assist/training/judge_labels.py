"""Training data for judge heads (Garipov et al. 2025, section 3): important tokens, found by AutoJudge's search.

The search of one prompt (Algorithm 1) does not know models: it is a generator that yields requests (:class:`Continue`,
:class:`Guess`) and receives the replies. :class:`Searches` serves many of them together. :class:`JudgeMiner` adds
hidden states to the labelled mismatches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..models.quantised import quantize_draft
from ..models.reading import CachedText, read_text, remembered, variant_states
from ..tasks import Example, Task
from ..values import ONE_OR_MORE, POSITIVE, Rule, or_none
from .choice import DraftArgmax, DraftQuery, Ids
from .labelling import FAILED, MINED, SKIPPED, Labelled, Labelling, Labels, PromptLabels
from .writing import ApiWriter, LocalWriter, Prompt, Writer


@dataclass(frozen=True)
class Continue:
    """A request for the target's response that begins with ``prefix`` (GENERATE); the reply includes the prefix."""

    prefix: Ids


@dataclass(frozen=True)
class Guess:
    """A request for the draft's choices at the positions from ``start`` to the end of ``response`` (FORWARD)."""

    response: Ids
    start: int


Request = Continue | Guess


@dataclass(frozen=True)
class Mismatch:
    """A mismatch: the tokens of target and draft at position ``index`` of the response.

    It is important if the draft's token changes the answer. It stands for ``weight`` mismatches of its prompt: for
    itself alone if all were labelled.
    """

    index: int
    target_token: int
    draft_token: int
    important: bool
    weight: float = 1.0


@dataclass(frozen=True)
class Found:
    """The labels of one prompt from left to right, with its first and last response.

    ``first`` is the target's own response; ``last`` has the draft's tokens at unimportant mismatches and the target's
    at important ones. ``answer`` is the first response's; if it is None, there are no labels. ``solved`` tells whether
    it is right, None where there is no reference. A prompt without labels is ``skipped`` for a reason.
    """

    first: Ids
    last: Ids
    answer: str | None
    mismatches: tuple[Mismatch, ...] = ()
    solved: bool | None = None
    skipped: str | None = None


_AHEAD = 32  # tokens of a new response that the draft reads in search of the next mismatch


def search(
    example: Example, task: Task, decode: Callable[[Sequence[int]], str], *, most: int | None = None, start: float = 0.0
) -> Generator[Request, Any, Found]:
    """Label every mismatch of draft and target by whether the answer depends on it.

    At each mismatch from left to right, the draft's token replaces the target's, and the target completes the response.
    If the answer stays, the search continues from the *new* response. An EOS is a token like any other.

    With ``most``, about so many mismatches are labelled, all by default. Of those that the search meets, it then labels
    every s-th from a random ``start`` in [0, 1) on, where s is the first response's number of mismatches over ``most``:
    each is labelled with probability 1 / s, and stands for s. At the others, the target's token stays.
    """
    last = yield Continue(())
    text = decode(last)
    found = Found(last, last, task.answer(example, text))
    if found.answer is None:
        return replace(found, skipped="the target's response states no answer")
    if example.answer:
        found = replace(found, solved=bool(task.correct(example, text)))
    guesses = yield Guess(last, 0)
    count = sum(ours != theirs for ours, theirs in zip(last, guesses, strict=True))
    weight = 1.0 if most is None else max(1.0, count / most)
    mismatches: list[Mismatch] = []
    met, t = 0, -1
    while (t := t + 1) < len(last):
        if t == len(guesses):
            guesses = (*guesses, *(yield Guess(last[: t + _AHEAD], t)))
        if last[t] == guesses[t]:
            continue
        met += 1
        if math.floor(met / weight + start) == math.floor((met - 1) / weight + start):
            continue
        new = yield Continue((*last[:t], guesses[t]))
        new_text = decode(new)
        kept = task.keeps_answer(example, text, new_text)
        mismatches.append(Mismatch(t, last[t], guesses[t], not kept, weight))
        if kept:
            last, text, guesses = new, new_text, guesses[: t + 1]
    return replace(found, last=last, mismatches=tuple(mismatches))


@dataclass(frozen=True)
class Searched:
    """A prompt whose search has ended, with its cost and its result or error."""

    prompt: Prompt
    cost: int  # tokens that the target has read
    found: Found | None
    error: Exception | None = None


@dataclass(eq=False)
class Searches:
    """Runs :func:`search` for many prompts together.

    Every slot holds one prompt. All requested continuations are written in one batch, and all requested choices of the
    draft read in one batch. A free slot starts the next prompt at once.
    """

    writer: Writer
    draft: DraftArgmax
    task: Task
    decode: Callable[[Sequence[int]], str]
    slots: int
    most: int | None = None  # mismatches of a prompt that are labelled, drawn by the seed; None for all
    seed: int = 0

    def run(self, prompts: Iterable[Prompt]) -> Iterator[Searched]:
        """Search every prompt, and yield each as soon as its search ends, in any order."""
        self._source = iter(prompts)
        self._running: dict[int, tuple[Prompt, Generator[Request, Any, Found]]] = {}
        self._guesses: list[DraftQuery] = []
        self._ended: list[Searched] = []
        with closing(self.writer):
            for slot in range(self.slots):
                self._begin(slot)
            while self._running or self._ended:
                self._reply_all(self.writer.step())
                guesses, self._guesses = self._guesses, []
                self._reply_all(self.draft.guess(guesses))
                ended, self._ended = self._ended, []
                yield from ended

    def _begin(self, slot: int) -> None:
        """Give a slot the next prompt, if any."""
        if (prompt := next(self._source, None)) is not None:
            self.writer.begin(slot, prompt)
            start = random.Random(f"{self.seed}/{prompt.id}").random()
            steps = search(prompt.example, self.task, self.decode, most=self.most, start=start)
            self._running[slot] = prompt, steps
            self._reply(slot, None)

    def _reply_all(self, replies: Iterable[tuple[int, Any]]) -> None:
        for slot, reply in replies:
            self._reply(slot, reply)

    def _reply(self, slot: int, reply: Any) -> None:
        _, steps = self._running[slot]
        try:
            request = steps.send(reply)
            while isinstance(request, Continue) and self.writer.limits.over(request.prefix):
                request = steps.send(request.prefix)
            self._carry_out(slot, request)
        except StopIteration as end:
            self._end(slot, end.value)
        except Exception as error:  # whether of the task or of the prompt's text, it costs this prompt only
            self._end(slot, None, error)

    def _end(self, slot: int, found: Found | None, error: Exception | None = None) -> None:
        prompt, _ = self._running.pop(slot)
        self.draft.forget(slot)
        self._ended.append(Searched(prompt, self.writer.end(slot), found, error))
        self._begin(slot)

    def _carry_out(self, slot: int, request: Request) -> None:
        match request:
            case Continue(prefix):
                self.writer.submit(slot, prefix)
            case Guess(response, start):
                self._guesses.append(DraftQuery(slot, self._running[slot][0].tokens, response, start))


_GREEDY_OR_DRAWN = or_none(POSITIVE, "None for greedy text")
_COUNT_OR_ALL = or_none(ONE_OR_MORE, "None for all")
_ROUNDED = Rule("int8, int4 or None", ("int8", "int4", None).__contains__)
_COLUMNS = {
    "index": np.int32, "target_token": np.int32, "draft_token": np.int32, "important": np.bool_, "weight": np.float32,
}  # fmt: skip
"""The columns of a mismatch."""


@dataclass(frozen=True)
class JudgeLabels(Labels):
    """Labels mismatches by whether the answer depends on them (AutoJudge).

    Parameters
    ----------
    temperature
        Responses are drawn at this temperature, by draws that depend on seed and prefix alone; greedy by default.
    mismatches
        About so many mismatches of each prompt are labelled, all by default.
    writer_dtype
        ``"int8"`` or ``"int4"``: a rounded copy of the target writes the responses; the states are its own.
    """

    temperature: Annotated[float | None, _GREEDY_OR_DRAWN] = None
    mismatches: Annotated[int | None, _COUNT_OR_ALL] = None
    writer_dtype: Annotated[str | None, _ROUNDED] = None

    name = "judge"
    free = ("mismatches",)

    def check(self, labelling: Labelling) -> None:
        if labelling.api is None:
            return
        for name in ("temperature", "writer_dtype"):
            if (value := getattr(self, name)) is not None:
                raise LossyValueError(
                    f"`{name}` is {value!r}, but a target behind an API writes its responses greedily; leave it out"
                )

    def miner(self, labelling: Labelling) -> JudgeMiner:
        tokenizer, task, slots = labelling.pair.tokenizer, labelling.pair.task, labelling.batch_size
        if labelling.api is not None:
            writer: Writer = ApiWriter(labelling.api, task, tokenizer, labelling.limits, slots)
        else:
            author = labelling.pair.target
            if self.writer_dtype is not None:
                author = quantize_draft(author, self.writer_dtype)
            writer = LocalWriter(author, labelling.limits, labelling.choice)
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        guesses = DraftArgmax(labelling.pair.draft, labelling.choice)
        searches = Searches(writer, guesses, task, decode, slots, self.mismatches, labelling.seed)
        return JudgeMiner(searches, *next(iter(labelling.models.items())))


@dataclass(eq=False)
class JudgeMiner:
    """Labels the mismatches of prompts, and reads a model's states at every mismatch."""

    searches: Searches
    role: str  # "target", or "draft" where the target is behind an API
    model: PreTrainedModel
    _first: CachedText | None = None  # the first prompt

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[Labelled]:
        """Label every prompt, and yield each as soon as it is finished, in any order."""
        for searched in self.searches.run(prompts):
            yield self._outcome(searched)

    def _outcome(self, searched: Searched) -> Labelled:
        found = searched.found
        columns = {
            "answer": found and found.answer,
            "solved": found and found.solved,
            "first_response": found and found.first,
            "last_response": found and found.last,
            "mismatches": len(found.mismatches) if found else 0,
            "important": sum(one.important for one in found.mismatches) if found else 0,
            "target_tokens": searched.cost,
        }
        if found is None:
            error = f"{type(searched.error).__name__}: {searched.error}"
            return PromptLabels.of(searched.prompt, FAILED, columns, error), {}
        if found.skipped:
            return PromptLabels.of(searched.prompt, SKIPPED, columns, found.skipped), {}
        tokens = self._tokens(searched.prompt, found.last, found.mismatches) if found.mismatches else {}
        return PromptLabels.of(searched.prompt, MINED, columns), tokens

    def _tokens(self, prompt: Prompt, response: Sequence[int], mismatches: Sequence[Mismatch]) -> dict[str, np.ndarray]:
        columns = {}
        for name, kind in _COLUMNS.items():
            columns[name] = np.array([getattr(one, name) for one in mismatches], dtype=kind)
        if self._first is None:
            (self._first,) = remembered(self.model, [prompt.tokens[:-1]])
        states = mismatch_states(self.model, prompt.tokens, response, mismatches, self._first)
        for position, values in states.items():
            columns[f"{self.role}_{position}"] = values.float().cpu().numpy()
        return columns


def mismatch_states(
    model: PreTrainedModel,
    prompt: Sequence[int],
    response: Sequence[int],
    mismatches: Sequence[Mismatch],
    known: CachedText,
) -> dict[str, Tensor]:
    """Return a model's states ``(N, d)`` at every mismatch, before it and after the draft's token.

    ``response`` is the last one of the search (:attr:`Found.last`). What the prompt has in common with a
    ``known`` text is not read again.
    """
    shared = min(known.common(prompt), len(prompt) - 1)
    first, end = len(prompt) - 1, max((one.index + 1 for one in mismatches), default=0)  # no state after it is wanted
    reading = read_text(model, [(*prompt, *response[:end])], [(known, shared)], last=end + 1, states=True)
    (text,), (states,) = reading.memories, reading.states
    drafted = [(len(prompt) + one.index, one.draft_token) for one in mismatches]
    others = [i for i, (place, token) in enumerate(drafted) if text.tokens[place] != token]
    after = [states[place - first] for place, _ in drafted]
    for i, state in zip(others, variant_states(model, text, [drafted[i] for i in others]), strict=True):
        after[i] = state
    return {"previous": states[[place - 1 - first for place, _ in drafted]], "draft": torch.stack(after)}
