"""The folder of a labelling: its manifest and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import LossyValueError
from ..store.folder import MANIFEST, folder_lock, read_manifest, refuse, write_json
from ..store.shards import FAILED as FAILED
from ..store.shards import LOCK, TABLES, rows_that_count
from .writing import Prompt

if TYPE_CHECKING:
    import datasets

    from .labelling import Labelling

MINED, SKIPPED = "mined", "skipped"

_KINDS = {"kind": str, "task": str, "target": (dict, type(None)), "draft": dict, "settings": dict, "runs": list}

Schemas = Mapping[str, pa.Schema]
"""The columns of the tables ``"tokens"`` and ``"prompts"``."""


@dataclass(frozen=True)
class PromptResult:
    """A finished prompt, as it is stored.

    A ``"skipped"`` prompt can't give labels; at a ``"failed"`` one the task raised an error. ``error`` says more.
    ``columns`` are the entries of its row that only these labels have, ``tokens`` the columns of its labelled tokens.
    """

    prompt: Prompt
    status: str
    columns: Mapping[str, Any]
    tokens: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


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
    # What an older run has not written is not known.
    tables = (pa.concat_tables([part[x] for part in parts], promote_options="default") for x in TABLES)
    return Mined(manifest, *map(datasets.Dataset, tables))
