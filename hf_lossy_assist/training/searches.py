"""AutoJudge's search over many prompts at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from ..tasks import Task
from .draft_choices import DraftArgmax, DraftQuery
from .label_folder import Search, UnfinishedSearches
from .prompts import Prompt, ResponseCost
from .search import Ask, Chosen, Continue, Found, Guess, Learned, Request, search
from .writing import Writer


class TaskExecutor:
    """Asks the task questions; answers are fetched later.

    With ``workers`` threads, the models don't wait for a task that runs programs or asks a server. Without threads,
    questions are answered at once, which suits tasks that only parse text.
    """

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="task") if workers else None
        self._open: dict[Future[Any], int] = {}

    def ask(self, slot: int, question: Callable[[], Any]) -> None:
        if self._pool is not None:
            future = self._pool.submit(_outcome, question)
        else:
            future = Future()
            future.set_result(_outcome(question))
        self._open[future] = slot

    def answers(self, *, wait_for_one: bool) -> list[tuple[int, Any]]:
        """Return the finished answers or exceptions by slot, with ``wait_for_one`` at least one if any is open."""
        if wait_for_one and self._open:
            wait(self._open, return_when=FIRST_COMPLETED)
        done = [future for future in self._open if future.done()]
        return [(self._open.pop(future), future.result()) for future in done]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _outcome(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # a user's task may raise anything, which costs one prompt
        return error


@dataclass(frozen=True)
class Searched:
    """A prompt whose search has ended, with its cost and its result or error."""

    prompt: Prompt
    counts: ResponseCost
    found: Found | None
    error: Exception | None = None


@dataclass(frozen=True, eq=False)
class Searches:
    """Runs :func:`.search.search` for many prompts together.

    Every slot holds one prompt. All requested continuations are written in one batch, and all requested choices of the
    draft read in one batch. A free slot starts the next prompt at once. ``workers`` is that of :class:`TaskExecutor`.
    Searches that an earlier run left ``unfinished`` go on.
    """

    writer: Writer
    draft: DraftArgmax
    task: Task
    decode: Callable[[Sequence[int]], str]
    slots: int
    workers: int = 0
    unfinished: UnfinishedSearches = field(default_factory=UnfinishedSearches)
    chosen: Chosen = field(default_factory=Chosen)

    def run(self, prompts: Iterable[Prompt]) -> Iterator[Searched]:
        """Search every prompt, and yield each as soon as its search ends, in any order."""
        with closing(self.writer), closing(TaskExecutor(self.workers)) as executor:
            yield from _Run(self, executor, iter(prompts)).results()


@dataclass(frozen=True)
class _Running:
    """A prompt at work, its cost so far, and its search."""

    prompt: Prompt
    cost: ResponseCost
    steps: Generator[Request, Any, Found]


class _Run:
    """The slots of one run, which carry out what their searches ask for."""

    def __init__(self, plan: Searches, executor: TaskExecutor, source: Iterator[Prompt]) -> None:
        self._plan = plan
        self._executor = executor
        self._source = source
        self._running: dict[int, _Running] = {}
        self._guesses: list[DraftQuery] = []
        self._learned: dict[int, Search] = {}  # by prompt
        self._ended: list[Searched] = []

    def results(self) -> Iterator[Searched]:
        plan = self._plan
        for slot in range(plan.slots):
            self._begin(slot)
        while self._running:
            self._reply_all(plan.writer.step())
            idle = not plan.writer.busy() and not self._guesses
            self._reply_all(self._executor.answers(wait_for_one=idle))
            guesses, self._guesses = self._guesses, []
            self._reply_all(plan.draft.guess(guesses))
            learned, self._learned = self._learned, {}
            plan.unfinished.keep(learned)
            ended, self._ended = self._ended, []
            yield from ended
            plan.unfinished.forget(searched.prompt.id for searched in ended)  # whose results are stored by now

    def _begin(self, slot: int) -> None:
        """Give a slot the next prompt, if any."""
        if (prompt := next(self._source, None)) is not None:
            plan = self._plan
            cost, found = plan.unfinished.get(prompt.id)
            plan.writer.begin(slot, prompt, cost)
            how = {"chosen": plan.chosen, "start": plan.chosen.start(prompt.id)}
            steps = search(prompt.example, plan.task, plan.decode, found, **how)
            self._running[slot] = _Running(prompt, cost, steps)
            self._reply(slot, None)

    def _reply_all(self, replies: Iterable[tuple[int, Any]]) -> None:
        for slot, reply in replies:
            self._reply(slot, reply)

    def _reply(self, slot: int, reply: Any) -> None:
        steps = self._running[slot].steps
        try:
            request = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
            self._carry_out(slot, request)
        except StopIteration as end:
            self._end(slot, end.value)
        except Exception as error:  # whether of the task or of the prompt's text, it costs this prompt only
            self._end(slot, None, error)

    def _end(self, slot: int, found: Found | None, error: Exception | None = None) -> None:
        ended = self._running.pop(slot)
        self._plan.draft.forget(slot)
        self._plan.writer.end(slot)
        self._ended.append(Searched(ended.prompt, ended.cost, found, error))
        self._begin(slot)

    def _carry_out(self, slot: int, request: Request) -> None:
        match request:
            case Continue(prefix) if self._plan.writer.limits.over(prefix):
                self._reply(slot, prefix)
            case Continue(prefix):
                self._plan.writer.submit(slot, prefix)
            case Guess(response, start):
                self._guesses.append(DraftQuery(slot, self._running[slot].prompt.tokens, response, start))
            case Ask(question):
                self._executor.ask(slot, question)
            case Learned(found):
                running = self._running[slot]
                self._learned[running.prompt.id] = running.cost, found
                self._reply(slot, None)
