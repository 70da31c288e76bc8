"""The origin of labelled states, for the configuration of a head."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..compat import versions_of
from ..heads import ModelIdentity

_PACKAGES = ("torch", "transformers", "scikit-learn", "numpy")


@dataclass(frozen=True)
class Origin:
    """The models, the task and the data that labelled states come from.

    ``card`` has further entries of the provenance for the model card, such as ``license`` or ``pair``.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def config_fields(self, settings: Mapping[str, Any], **notes: Any) -> dict[str, Any]:
        """Return the fields of a head's configuration about its models, its task and its training."""
        from ..version import __version__

        versions = {"hf_lossy_assist": __version__, "Python": platform.python_version()}
        record = {
            **self.card,
            "command": command_line(),
            "argv": ["lossy-assist", *sys.argv[1:]],
            "versions": versions | versions_of(*_PACKAGES),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "data": self.data,
            "training": {**settings, **notes},
        }
        # As JSON reads it, so that a loaded head equals the saved one.
        provenance = _without_folders(json.loads(json.dumps(record)))
        return {"target": self.target, "draft": self.draft, "task": self.task, "provenance": provenance}


def command_line() -> str:
    """Return the command line for cards, without the folders of paths to elsewhere."""
    return shlex.join(["lossy-assist", *map(without_folder, sys.argv[1:])])


def without_folder(word: str) -> str:
    """Leave the folders out of a path to elsewhere, alone or after ``=``: they say nothing on another machine.

    Examples
    --------
    >>> without_folder("../test.jsonl"), without_folder("judge=/home/me/head"), without_folder("topk:k=2")
    ('test.jsonl', 'judge=head', 'topk:k=2')
    """
    name, equals, path = word.rpartition("=")
    elsewhere = Path(path).is_absolute() or path.startswith("../")
    return f"{name}{equals}{Path(path).name}" if elsewhere else word


def _without_folders(record: Any) -> Any:
    """Apply ``without_folder`` to every text of a record that JSON gave."""
    match record:
        case str():
            return without_folder(record)
        case list():
            return [_without_folders(value) for value in record]
        case dict():
            return {key: _without_folders(value) for key, value in record.items()}
    return record


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest, independent of the order of its keys."""
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
