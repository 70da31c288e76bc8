"""AutoJudge's search for important tokens (Garipov et al. 2025, Algorithm 1), for one prompt.

The search does not know models: it is a generator that yields requests (:class:`Continue`, :class:`Guess`,
:class:`Ask`, :class:`Learned`) and receives the replies, so its caller can serve many searches at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..tasks import Example, Task
from .prompt_results import Ids


@dataclass(frozen=True)
class Continue:
    """A request for the target's response that begins with ``prefix`` (GENERATE); the reply includes the prefix."""

    prefix: Ids


@dataclass(frozen=True)
class Guess:
    """A request for the draft's choices at the positions from ``start`` of ``response`` (FORWARD)."""

    response: Ids
    start: int


@dataclass(frozen=True)
class Ask:
    """A request to the task, which may run programs or ask a server."""

    question: Callable[[], Any]


@dataclass(frozen=True)
class Mismatch:
    """A mismatch: the tokens of target and draft at position ``index`` of the response.

    It is important if the draft's token changes the answer.
    """

    index: int
    target_token: int
    draft_token: int
    important: bool


@dataclass(frozen=True)
class Found:
    """The labels of one prompt from left to right, with its first and last response.

    ``first`` is the target's own response; ``last`` has the draft's tokens at unimportant mismatches and the target's
    at important ones. ``answer`` is the first response's; if it is None, there are no labels.
    """

    first: Ids
    last: Ids
    answer: str | None
    mismatches: tuple[Mismatch, ...] = ()


@dataclass(frozen=True)
class Learned:
    """What the search has found so far, to be kept in case it is cut off; there is no reply."""

    found: Found


Request = Continue | Guess | Ask | Learned


def search(
    example: Example, task: Task, decode: Callable[[Sequence[int]], str], found: Found | None = None
) -> Generator[Request, Any, Found]:
    """Label every mismatch of draft and target by whether the answer depends on it.

    At each mismatch from left to right, the draft's token replaces the target's, and the target completes the response.
    If the answer stays, the search continues from the *new* response. An EOS is a token like any other. With what an
    earlier search had ``found`` before it was cut off, this one goes on from there.
    """
    if found is None:
        first = yield Continue(())
        answer = yield Ask(partial(task.answer, example, decode(first)))
        found = Found(first, first, answer)
        if answer is None:
            return found
    text = decode(found.last)
    guesses = yield Guess(found.last, 0)
    t = found.mismatches[-1].index if found.mismatches else -1
    while (t := next_mismatch(found.last, guesses, t + 1)) is not None:
        new = yield Continue((*found.last[:t], guesses[t]))
        new_text = decode(new)
        kept = yield Ask(partial(task.keeps_answer, example, text, new_text))
        mismatch = Mismatch(t, found.last[t], guesses[t], important=not kept)
        found = replace(found, mismatches=(*found.mismatches, mismatch))
        if kept:
            found, text = replace(found, last=new), new_text
            guesses = (*guesses[: t + 1], *(yield Guess(new, t + 1)))
        yield Learned(found)
    return found


def next_mismatch(response: Sequence[int], guesses: Sequence[int], start: int) -> int | None:
    """Return the first position from ``start`` on at which the two differ, or None."""
    return next((i for i in range(start, len(response)) if response[i] != guesses[i]), None)
