"""AutoJudge's search for important tokens (Garipov et al. 2025, Algorithm 1), for one prompt.

The search does not know models: it is a generator that yields requests (:class:`Continue`, :class:`Guess`,
:class:`Ask`, :class:`Learned`) and receives the replies, so its caller can serve many searches at once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..tasks import Example, Task
from .prompts import Ids


@dataclass(frozen=True)
class Continue:
    """A request for the target's response that begins with ``prefix`` (GENERATE); the reply includes the prefix."""

    prefix: Ids


@dataclass(frozen=True)
class Guess:
    """A request for the draft's choices at the positions from ``start`` to the end of ``response`` (FORWARD)."""

    response: Ids
    start: int


@dataclass(frozen=True)
class Ask:
    """A request to the task, which may run programs or ask a server."""

    question: Callable[[], Any]


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


@dataclass(frozen=True)
class Learned:
    """What the search has found so far, to be kept in case it is cut off; there is no reply."""

    found: Found


Request = Continue | Guess | Ask | Learned


@dataclass(frozen=True)
class Chosen:
    """Which mismatches are labelled.

    About ``most`` of a prompt's mismatches are drawn by ``seed``, all by default: as many of the first response's, and
    as large a share of those that changed texts add. With ``solved``, prompts that the target answers wrongly get no
    labels.
    """

    most: int | None = None
    seed: int = 0
    solved: bool = False

    def start(self, prompt: int) -> float:
        """Return the number in [0, 1) that decides for a prompt."""
        return random.Random(f"{self.seed}/{prompt}").random()

    def weight(self, count: int) -> float:
        """Return how many mismatches each labelled one stands for, if the first response has ``count``."""
        return 1.0 if self.most is None else max(1.0, count / self.most)


_AHEAD = 32  # tokens of a new response that the draft reads in search of the next mismatch


def search(
    example: Example,
    task: Task,
    decode: Callable[[Sequence[int]], str],
    found: Found | None = None,
    *,
    chosen: Chosen = Chosen(),
    start: float = 0.0,
) -> Generator[Request, Any, Found]:
    """Label every mismatch of draft and target by whether the answer depends on it.

    At each mismatch from left to right, the draft's token replaces the target's, and the target completes the response.
    If the answer stays, the search continues from the *new* response. An EOS is a token like any other. With what an
    earlier search had ``found`` before it was cut off, this one goes on from there.

    ``chosen`` leaves mismatches out. Of those that the search meets, it then labels every s-th from a random ``start``
    on, where s is the first response's number of mismatches over ``chosen.most``: each is labelled with probability
    1 / s, and stands for s. At the others, the target's token stays. A search that goes on keeps the s of its labels.
    """
    if found is None:
        first = yield Continue(())
        answer = yield Ask(partial(task.answer, example, decode(first)))
        found = Found(first, first, answer)
        yield Learned(found)
    if found.answer is not None and found.solved is None and example.answer:
        solved = yield Ask(partial(task.correct, example, decode(found.first)))
        found = replace(found, solved=bool(solved))
    if found.answer is None:
        return replace(found, skipped="the target's response states no answer")
    if chosen.solved and found.solved is False and not found.mismatches:
        return replace(found, skipped="the target's answer is wrong")
    text = decode(found.last)
    guesses = yield Guess(found.last, 0)
    differs = [ours != theirs for ours, theirs in zip(found.last, guesses, strict=True)]
    t = found.mismatches[-1].index if found.mismatches else -1
    weight = found.mismatches[-1].weight if found.mismatches else chosen.weight(sum(differs))
    met = sum(differs[: t + 1]) + sum(not one.important for one in found.mismatches)
    while (t := t + 1) < len(found.last):
        if t == len(guesses):
            guesses = (*guesses, *(yield Guess(found.last[: t + _AHEAD], t)))
        if found.last[t] == guesses[t]:
            continue
        met += 1
        if math.floor(met / weight + start) == math.floor((met - 1) / weight + start):
            continue
        new = yield Continue((*found.last[:t], guesses[t]))
        new_text = decode(new)
        kept = yield Ask(partial(task.keeps_answer, example, text, new_text))
        mismatch = Mismatch(t, found.last[t], guesses[t], not kept, weight)
        found = replace(found, mismatches=(*found.mismatches, mismatch))
        if kept:
            found, text, guesses = replace(found, last=new), new_text, guesses[: t + 1]
        yield Learned(found)
    return found
