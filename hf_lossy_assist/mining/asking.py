"""Questions to the task, on the spot or in threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

Answers = list[tuple[int, Any]]
"""Slots, each with its answer or the exception that was raised instead."""


class Asker(Protocol):
    """Puts questions; answers are fetched later."""

    def ask(self, slot: int, question: Callable[[], Any]) -> None:
        """Put a question."""

    def answers(self, *, wait_for_one: bool) -> Answers:
        """Return the answers that are there; with ``wait_for_one`` at least one, if any question is open."""

    def close(self) -> None:
        """Forget open questions."""


class OnTheSpot:
    """Answers at once: best where an answer is only read off a text."""

    def __init__(self) -> None:
        self._answers: Answers = []

    def ask(self, slot: int, question: Callable[[], Any]) -> None:
        self._answers.append((slot, _outcome(question)))

    def answers(self, *, wait_for_one: bool) -> Answers:
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        self._answers = []


class InThreads:
    """Keeps nobody waiting for a task that runs programs or asks a server.

    Parameters
    ----------
    workers
        Questions at once.
    """

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="task")
        self._open: dict[Future[Any], int] = {}

    def ask(self, slot: int, question: Callable[[], Any]) -> None:
        self._open[self._pool.submit(_outcome, question)] = slot

    def answers(self, *, wait_for_one: bool) -> Answers:
        if wait_for_one and self._open:
            wait(self._open, return_when=FIRST_COMPLETED)
        done = [future for future in self._open if future.done()]
        return [(self._open.pop(future), future.result()) for future in done]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def asker(workers: int) -> Asker:
    """Return an asker with so many threads; 0 asks on the spot."""
    return InThreads(workers) if workers else OnTheSpot()


def _outcome(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # A user's task may raise anything, and costs one prompt.
        return error
