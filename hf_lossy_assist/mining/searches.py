"""AutoJudge's search over many prompts at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..tasks import Task
from .asking import Asker, asker
from .guessing import Guesser, Wanted
from .outcomes import Prompt
from .search import Found, search
from .writing import Counts, Writer

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Searched:
    """A prompt whose search has ended: with what it found, or with an error of the task's; and what it has cost."""

    prompt: Prompt
    counts: Counts
    found: Found | None
    error: Exception | None = None


@dataclass(frozen=True, eq=False)
class Searches:
    """Runs :func:`.search.search` for many prompts together.

    Every slot holds one prompt; whatever stage each is at, continuations are written in one batch and the draft's
    choices are read in one batch. A slot whose prompt is finished starts the next one at once.

    Parameters
    ----------
    writer
        The target.
    guesser
        The draft.
    task
        The judge of answers.
    decode
        Turns the ids of a response into its text.
    slots
        Prompts at once.
    workers
        Threads for questions to the task; 0 asks on the spot.
    """

    writer: Writer
    guesser: Guesser
    task: Task
    decode: Callable[[Sequence[int]], str]
    slots: int
    workers: int = 0

    def run(self, prompts: Iterable[Prompt]) -> Iterator[Searched]:
        """Search every prompt; yields each as soon as its search ends, whatever the order."""
        with closing(self.writer), closing(asker(self.workers)) as asking:
            yield from _Run(self, asking, iter(prompts)).results()


class _Run:
    """One run's slots. It is the desk that the searches turn to."""

    def __init__(self, plan: Searches, asking: Asker, source: Iterator[Prompt]) -> None:
        self._plan = plan
        self._asker = asking
        self._source = source
        self._running: dict[int, tuple[Prompt, Generator[Any, Any, Found]]] = {}
        self._guesses: list[Wanted] = []
        self._ended: list[Searched] = []

    def results(self) -> Iterator[Searched]:
        plan = self._plan
        for slot in range(plan.slots):
            self._begin(slot)
        while self._running:
            self._reply_all(plan.writer.step())
            idle = not plan.writer.busy() and not self._guesses
            self._reply_all(self._asker.answers(wait_for_one=idle))
            guesses, self._guesses = self._guesses, []
            self._reply_all(plan.guesser.guess(guesses))
            ended, self._ended = self._ended, []
            yield from ended

    def _begin(self, slot: int) -> None:
        """Give a slot its next prompt, if there is one."""
        prompt = next(self._source, None)
        self._plan.guesser.forget(slot)
        if prompt is None:
            self._plan.writer.end(slot)
            return
        self._plan.writer.begin(slot, prompt)
        self._running[slot] = (prompt, search(prompt.example, self._plan.task, self._plan.decode))
        self._reply(slot, None)

    def _reply_all(self, replies: Iterable[tuple[int, Any]]) -> None:
        for slot, reply in replies:
            self._reply(slot, reply)

    def _reply(self, slot: int, reply: Any) -> None:
        _, steps = self._running[slot]
        try:
            wish = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
            wish.hand_to(self, slot)
        except StopIteration as end:
            self._end(slot, end.value)
        except Exception as error:  # Of the task, or of this prompt's text: it costs this prompt only.
            self._end(slot, None, error)

    def _end(self, slot: int, found: Found | None, error: Exception | None = None) -> None:
        prompt, _ = self._running.pop(slot)
        self._ended.append(Searched(prompt, self._plan.writer.counts(slot), found, error))
        self._begin(slot)

    def continue_(self, slot: int, prefix: Ids) -> None:
        self._plan.writer.submit(slot, prefix)

    def guess(self, slot: int, response: Ids, start: int) -> None:
        self._guesses.append(Wanted(slot, self._running[slot][0].tokens, response, start))

    def ask(self, slot: int, question: Callable[[], Any]) -> None:
        self._asker.ask(slot, question)
