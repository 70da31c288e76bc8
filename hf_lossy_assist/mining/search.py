"""AutoJudge's search for important tokens (Garipov et al. 2025, Algorithm 1), for one prompt.

The search knows nothing of models: it is a generator that yields what it needs to be done (:class:`Continue`,
:class:`Guess`, :class:`Ask`) and is sent the result. Whoever drives it may serve many searches at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ..tasks import Example, Task
from .prompt_results import Ids


@dataclass(frozen=True)
class Continue:
    """A request for the target's response that begins with ``prefix`` (GENERATE); the reply is all of it."""

    prefix: Ids


@dataclass(frozen=True)
class Guess:
    """A request for the draft's choices at the positions of ``response`` from ``start`` on (FORWARD)."""

    response: Ids
    start: int


@dataclass(frozen=True)
class Ask:
    """A request for an answer of the task, which may run programs or ask a server."""

    question: Callable[[], Any]


Request = Continue | Guess | Ask


@dataclass(frozen=True)
class Mismatch:
    """A labelled mismatch of target and draft: their tokens at position ``index`` of the response.

    It is important if the draft's token in place of the target's changes the answer.
    """

    index: int
    target_token: int
    draft_token: int
    important: bool


@dataclass(frozen=True)
class Found:
    """The labels of one prompt from left to right, and the responses that they lead from and to.

    ``first`` is the target's own response; ``last`` has the draft's tokens at unimportant mismatches, the target's at
    important ones. ``answer`` is that of the first response; None if it states none, and then there are no labels.
    """

    first: Ids
    last: Ids
    answer: str | None
    mismatches: tuple[Mismatch, ...] = ()


def search(example: Example, task: Task, decode: Callable[[Sequence[int]], str]) -> Generator[Request, Any, Found]:
    """Label every mismatch of draft and target that the answer does or does not depend on.

    Goes from left to right: the first mismatch's token is replaced by the draft's, the target finishes the
    response, and if the answer is kept the search goes on from the *new* response. An EOS is a token like any other.

    Examples
    --------
    A target that says 1 1 1 whatever happened, a draft that says 2, and only the last token counts:

    >>> class Last(Task):
    ...     def examples(self, split, n): ...
    ...     def extract_answer(self, text):
    ...         return text[-1]
    ...     def equivalent(self, a, b):
    ...         return a == b
    >>> requests = search(Example("", ""), Last(), lambda ids: "".join(map(str, ids)))
    >>> request = next(requests)
    >>> try:
    ...     while True:
    ...         match request:
    ...             case Ask(question): reply = question()
    ...             case Continue(prefix): reply = (*prefix, 1, 1, 1)[:3]
    ...             case Guess(_, start): reply = (2, 2, 2)[start:]
    ...         request = requests.send(reply)
    ... except StopIteration as end:
    ...     found = end.value
    >>> found.last, [mismatch.important for mismatch in found.mismatches]
    ((2, 2, 1), [False, False, True])
    """
    first = response = yield Continue(())
    text = decode(response)
    answer = yield Ask(lambda: task.answer(example, text))
    if answer is None:
        return Found(first, response, None)
    guesses = yield Guess(response, 0)
    mismatches = []
    t = -1
    while (t := next_mismatch(response, guesses, t + 1)) is not None:
        new = yield Continue((*response[:t], guesses[t]))
        new_text = decode(new)
        kept = yield Ask(_keeps(task, example, text, new_text))
        mismatches.append(Mismatch(t, response[t], guesses[t], important=not kept))
        if kept:
            response, text = new, new_text
            guesses = (*guesses[: t + 1], *(yield Guess(response, t + 1)))
    return Found(first, response, answer, tuple(mismatches))


def next_mismatch(response: Sequence[int], guesses: Sequence[int], start: int) -> int | None:
    """Return the first position from ``start`` on at which the two differ, or None."""
    return next((i for i in range(start, len(response)) if response[i] != guesses[i]), None)


def _keeps(task: Task, example: Example, current: str, new: str) -> Callable[[], bool]:
    # The question may be put later, when the search's own variables have moved on.
    return lambda: task.keeps_answer(example, current, new)
