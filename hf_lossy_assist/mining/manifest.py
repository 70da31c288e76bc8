"""The manifest of a folder of mined data: what it holds, where from, and what may be added to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..heads.identity import ModelIdentity
from .files import checksum, write_whole

NAME, LOCK = "manifest.json", ".manifest.lock"


@dataclass(frozen=True)
class MiningPlan:
    """What a run mines. Data of two plans don't belong together.

    A target that is behind an API only is None. ``settings`` has everything else that has an influence on the data; of
    a file that is named by ``task_data`` the manifest keeps the content's SHA-256 too.
    """

    kind: str
    task: str
    target: PreTrainedModel | None
    draft: PreTrainedModel
    settings: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the plan as it stands in a manifest."""
        return {
            "kind": self.kind,
            "task": self.task,
            "target": None if self.target is None else asdict(ModelIdentity.of(self.target)),
            "draft": asdict(ModelIdentity.of(self.draft)),
            "settings": {**self.settings, **self._content()},
        }

    def _content(self) -> dict[str, str]:
        data = self.settings.get("task_data")
        return {"task_data_sha256": checksum(Path(data).read_bytes())} if data and Path(data).is_file() else {}

    def differences(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return what differs from the plan in a manifest, one sentence for each point."""
        # What JSON makes of the settings is what they are compared with.
        record = json.loads(json.dumps(self.record()))
        before, now = manifest.get("settings", {}), record["settings"]
        found = _changes(("kind", "task"), manifest, record)
        found += _changes(sorted(before.keys() | now.keys()), before, now)
        for role, model in (("target", self.target), ("draft", self.draft)):
            found += [f"of the {role}, {difference}" for difference in _model_changes(manifest.get(role), model)]
        return found


def _changes(names: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [name for name in names if before.get(name) != now.get(name)]
    return [f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in changed]


def _model_changes(identity: Mapping[str, Any] | None, model: PreTrainedModel | None) -> list[str]:
    if identity is None or model is None:
        return [] if identity is model else ["there was none" if identity is None else "there is none"]
    return ModelIdentity.from_dict(identity).differences(model)


# What a manifest has to hold, and in which type.
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "kind": str,
    "task": str,
    "target": (dict, type(None)),
    "draft": dict,
    "settings": dict,
    "runs": list,
}


def read(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest; refuse a folder that has none, or one that ``lossy-assist mine`` did not write."""
    path = folder / NAME
    if not path.is_file():
        raise LossyValueError(
            f"`folder` has to be one that `lossy-assist mine` wrote, but {str(folder)!r} has no {NAME}"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise LossyValueError(f"`folder` has to hold mined data, but {str(path)!r} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or not _FIELDS.keys() <= manifest.keys():
        raise LossyValueError(f"`folder` has to hold mined data, but {str(path)!r} is some other JSON")
    for name, kind in _FIELDS.items():
        if not isinstance(manifest[name], kind):
            raise LossyValueError(f"`{name}` in {str(path)!r} is of another type than `lossy-assist mine` writes")
    return manifest


def open_run(folder: Path, plan: MiningPlan, provenance: Mapping[str, Any]) -> None:
    """Enter a run into a folder's manifest, which is made if there is none; refuse a folder with data of another plan.

    ``provenance`` has versions, command line, date and machine of the run.
    """
    from filelock import FileLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK).acquire()
    except OSError as error:
        raise LossyValueError(
            f"`out` has to be a folder that can be written to, but {str(folder)!r} is not: {error}"
        ) from error
    with lock:
        if (folder / NAME).exists():
            manifest = read(folder)
            try:
                differences = plan.differences(manifest)
            except LossyValueError as error:
                raise LossyValueError(f"{str(folder / NAME)!r} names no model: {error}") from error
            if differences:
                raise LossyValueError(
                    f"`out` has to be a new folder or hold data mined with the same settings, but in {str(folder)!r} "
                    f"{'; '.join(differences)}; choose another folder"
                )
        else:
            manifest = {**plan.record(), "runs": []}
        manifest["runs"].append(dict(provenance))
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        write_whole(folder / NAME, text.encode())
