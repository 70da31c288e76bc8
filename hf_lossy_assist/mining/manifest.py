"""Folders of mined data: their manifest and their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..heads.identity import ModelIdentity, differing_models
from ..store.folder import MANIFEST, changes, folder_lock, read_manifest, refuse, write_json
from ..store.shards import LOCK, TABLES, rows_that_count

if TYPE_CHECKING:
    import datasets

_KINDS = {"kind": str, "task": str, "target": (dict, type(None)), "draft": dict, "settings": dict, "runs": list}


@dataclass(frozen=True)
class MiningPlan:
    """All that mined data depend on; a folder holds data of one plan.

    A ``target`` behind an API is None. ``settings`` has everything else that influences the data. Where its
    ``task_data`` is a file, the manifest stores the file's SHA-256 too.
    """

    kind: str
    task: str
    target: PreTrainedModel | None
    draft: PreTrainedModel
    settings: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the plan for a manifest."""
        data = Path(self.settings.get("task_data") or "")
        digest = {"task_data_sha256": hashlib.sha256(data.read_bytes()).hexdigest()} if data.is_file() else {}
        target = None if self.target is None else asdict(ModelIdentity.of(self.target))
        draft = asdict(ModelIdentity.of(self.draft))
        return {**vars(self), "target": target, "draft": draft, "settings": {**self.settings, **digest}}

    def differences(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return a sentence for each difference to the plan in a manifest."""
        record = json.loads(json.dumps(self.record()))  # as JSON has it
        found = changes(manifest, record, ("kind", "task")) + changes(manifest["settings"], record["settings"])
        return found + differing_models(manifest, {"target": self.target, "draft": self.draft})


def open_run(folder: Path, plan: MiningPlan, provenance: Mapping[str, Any]) -> None:
    """Add a run to a folder's manifest, or make one; refuse a folder with data of another plan.

    ``provenance`` has the versions, command line, date and machine of the run.
    """
    with folder_lock(folder, LOCK):
        manifest = {**plan.record(), "runs": []}
        if (folder / MANIFEST).exists():
            manifest = read_manifest(folder, "mine", _KINDS)
            try:
                found = plan.differences(manifest)
            except LossyValueError as error:
                raise LossyValueError(f"{str(folder / MANIFEST)!r} names no model: {error}") from error
            refuse(folder, found)
        write_json(folder / MANIFEST, {**manifest, "runs": [*manifest["runs"], dict(provenance)]})


@dataclass(frozen=True)
class Mined:
    """The manifest and the rows of a folder of mined data.

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
    return Mined(manifest, *(datasets.Dataset(pyarrow.concat_tables([part[x] for part in parts])) for x in TABLES))
