"""The folder of a labelling: its manifest, its tables, and the searches that are not finished."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import LossyValueError
from ..store.folder import MANIFEST, folder_lock, read_manifest, refuse, write_json, write_whole
from ..store.shards import LOCK, TABLES, rows_that_count
from ..values import from_json
from .prompts import ResponseCost
from .search import Found, Mismatch

if TYPE_CHECKING:
    import datasets

    from .labelling import Labelling

_KINDS = {"kind": str, "task": str, "target": (dict, type(None)), "draft": dict, "settings": dict, "runs": list}

Schemas = Mapping[str, pa.Schema]
"""The columns of the tables ``"tokens"`` and ``"prompts"``."""


def table_schemas(prompts: Mapping[str, Any], tokens: Mapping[str, Any], states: Mapping[str, int]) -> Schemas:
    """Return the tables of a kind of labels, given the types of its own columns and the widths of its states."""
    common = {
        "prompt_id": pa.int64(),
        "status": pa.string(),
        "error": pa.string(),
        "prompt": pa.string(),
        "prompt_tokens": pa.list_(pa.int32()),
    }
    columns = {name: pa.list_(pa.float32(), width) for name, width in states.items()}
    return {
        "prompts": pa.schema({**common, **prompts}),
        "tokens": pa.schema({"prompt_id": pa.int64(), **tokens, **columns}),
    }


def open_run(folder: Path, labelling: Labelling, provenance: Mapping[str, Any]) -> None:
    """Add a run to a folder's manifest, or make one; refuse a folder with labels of another plan.

    ``provenance`` has the versions, command line, date and machine of the run.
    """
    with folder_lock(folder, LOCK):
        manifest = {**labelling.record(), "runs": []}
        if (folder / MANIFEST).exists():
            manifest = read_manifest(folder, "mine", _KINDS)
            try:
                found = labelling.differences(manifest)
            except LossyValueError as error:
                raise LossyValueError(f"{str(folder / MANIFEST)!r} names no model: {error}") from error
            refuse(folder, found)
        write_json(folder / MANIFEST, {**manifest, "runs": [*manifest["runs"], dict(provenance)]})


@dataclass(frozen=True)
class Mined:
    """The manifest and the rows of a folder of labels.

    ``tokens`` has a row for each labelled token, ``prompts`` one for each finished prompt, with labels or without.
    """

    manifest: dict[str, Any]
    tokens: datasets.Dataset
    prompts: datasets.Dataset


def load_mined(folder: str | Path) -> Mined:
    """Read what ``lossy-assist mine`` has written so far."""
    import datasets

    manifest = read_manifest(Path(folder), "mine", _KINDS)
    parts = rows_that_count(Path(folder))
    if not parts:
        raise LossyValueError(
            f"`folder` has to hold mined prompts, but {str(folder)!r} has none yet; repeat the `mine` command"
        )
    return Mined(manifest, *(datasets.Dataset(pa.concat_tables([part[x] for part in parts])) for x in TABLES))


Search = tuple[ResponseCost, Found]
"""The cost of a search so far, and what it has found."""


class UnfinishedSearches:
    """The searches that a run has begun, by prompt, so that an interrupted run goes on within them.

    Every process writes a file of its own beside the labels, and reads those of all. Without a folder, searches are
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
    cost = ResponseCost(record["target_tokens"], record["retokenised"])
    return record["prompt_id"], (cost, Found(first, last, record["answer"], mismatches, record["solved"]))
