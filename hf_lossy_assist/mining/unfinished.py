"""Searches that are not finished, in a file beside the mined data, so that an interrupted run goes on within them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import LossyValueError
from ..store.folder import write_whole
from .search import Found, Mismatch
from .writing import ResponseCost

Search = tuple[ResponseCost, Found]
"""The cost of a search so far, and what it has found."""


class UnfinishedSearches:
    """The searches that a run has begun, by prompt; without a folder they are forgotten.

    Every process writes a file of its own, and reads those of all.
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
        """Return what the search of a prompt has cost and found, which for a new one is nothing."""
        return self._searches.get(prompt, (ResponseCost(), None))

    def keep(self, learned: Mapping[int, Search]) -> None:
        """Write down what searches have found so far, if any has found something new."""
        self._searches |= learned
        if learned and self._path is not None:
            records = [record_of(prompt, *search) for prompt, search in self._searches.items()]
            write_whole(self._path, json.dumps(records).encode())

    def forget(self, prompts: Iterable[int]) -> None:
        """Leave finished prompts out of what is written next; without any other, the file goes."""
        for prompt in prompts:
            self._searches.pop(prompt, None)
        if not self._searches and self._path is not None:
            self._path.unlink(missing_ok=True)


def _read(path: Path) -> list[tuple[int, Search]]:
    try:
        return [search_of(record) for record in json.loads(path.read_text(encoding="utf-8"))]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise LossyValueError(
            f"`out` has a file of unfinished searches that can't be read, {str(path)!r}: {error!r}; delete it"
        ) from error


def record_of(prompt: int, cost: ResponseCost, found: Found) -> dict[str, Any]:
    """Return a search as JSON has it."""
    mismatches = [[x.index, x.target_token, x.draft_token, x.important] for x in found.mismatches]
    return {
        "prompt_id": prompt,
        "answer": found.answer,
        "first_response": found.first,
        "last_response": found.last,
        "target_tokens": cost.target_tokens,
        "retokenised": cost.retokenised,
        "mismatches": mismatches,
    }


def search_of(record: Mapping[str, Any]) -> tuple[int, Search]:
    """Return the prompt and the search of a record."""
    mismatches = tuple(Mismatch(*values) for values in record["mismatches"])
    first, last = tuple(record["first_response"]), tuple(record["last_response"])
    cost = ResponseCost(record["target_tokens"], record.get("retokenised", 0))
    return record["prompt_id"], (cost, Found(first, last, record["answer"], mismatches))
