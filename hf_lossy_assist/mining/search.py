"""AutoJudge's search for important tokens (Garipov et al. 2025, Algorithm 1), for one prompt, and its notes on disk.

The search does not know models: it is a generator that yields requests (:class:`Continue`, :class:`Guess`,
:class:`Ask`, :class:`Learned`) and receives the replies, so its caller can serve many searches at once.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import LossyValueError
from ..store.folder import write_whole
from ..tasks import Example, Task
from ..values import from_json
from .prompt_results import Ids, ResponseCost


@dataclass(frozen=True)
class Continue:
    """A request for the target's response that begins with ``prefix`` (GENERATE); the reply includes the prefix.

    ``old`` is the response whose token was replaced by the prefix's last one. The new one often comes back to it.
    """

    prefix: Ids
    old: Ids = ()


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
        new = yield Continue((*found.last[:t], guesses[t]), found.last)
        new_text = decode(new)
        kept = yield Ask(partial(task.keeps_answer, example, text, new_text))
        mismatch = Mismatch(t, found.last[t], guesses[t], not kept, weight)
        found = replace(found, mismatches=(*found.mismatches, mismatch))
        if kept:
            found, text, guesses = replace(found, last=new), new_text, guesses[: t + 1]
        yield Learned(found)
    return found


Search = tuple[ResponseCost, Found]
"""The cost of a search so far, and what it has found."""


class UnfinishedSearches:
    """The searches that a run has begun, by prompt, so that an interrupted run goes on within them.

    Every process writes a file of its own beside the mined data, and reads those of all. Without a folder, searches are
    forgotten.
    """

    def __init__(self, folder: Path | None = None, process: int = 0) -> None:
        self._path = None if folder is None else folder / f"unfinished-{process}.json"
        files = [] if folder is None else folder.glob("unfinished-*.json")
        found = [search for path in files for search in _read(path)]
        # Where the number of processes has changed, two files may have the same prompt.
        self._searches: dict[int, Search] = dict(sorted(found, key=lambda one: len(one[1][1].mismatches)))

    def items(self) -> Iterable[tuple[int, Search]]:
        return self._searches.items()

    def get(self, prompt: int) -> tuple[ResponseCost, Found | None]:
        """Return the saved cost and findings of a prompt's search; empty for a new prompt."""
        return self._searches.get(prompt, (ResponseCost(), None))

    def keep(self, learned: Mapping[int, Search]) -> None:
        """Save the findings of searches, if any has found something new."""
        self._searches |= learned
        if learned and self._path is not None:
            records = [record_of(prompt, *search) for prompt, search in self._searches.items()]
            write_whole(self._path, json.dumps(records).encode())

    def forget(self, prompts: Iterable[int]) -> None:
        """Drop finished prompts from the next save. With the last one, the file goes."""
        for prompt in prompts:
            self._searches.pop(prompt, None)
        if not self._searches and self._path is not None:
            self._path.unlink(missing_ok=True)


def _read(path: Path) -> list[tuple[int, Search]]:
    try:
        return [search_of(record) for record in from_json(path.read_bytes(), "it")]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise LossyValueError(
            f"`out` has a file of unfinished searches that can't be read, {str(path)!r}: {error!r}; delete it"
        ) from error


def record_of(prompt: int, cost: ResponseCost, found: Found) -> dict[str, Any]:
    """Return a search as JSON has it."""
    mismatches = [[*vars(x).values()][: None if x.weight != 1 else -1] for x in found.mismatches]
    return {
        "prompt_id": prompt,
        "answer": found.answer,
        "first_response": found.first,
        "last_response": found.last,
        "target_tokens": cost.target_tokens,
        "retokenised": cost.retokenised,
        "solved": found.solved,
        "mismatches": mismatches,
    }


def search_of(record: Mapping[str, Any]) -> tuple[int, Search]:
    """Return the prompt and the search of a record."""
    mismatches = tuple(Mismatch(*values) for values in record["mismatches"])
    first, last = tuple(record["first_response"]), tuple(record["last_response"])
    cost = ResponseCost(record["target_tokens"], record.get("retokenised", 0))
    return record["prompt_id"], (cost, Found(first, last, record["answer"], mismatches, record.get("solved")))
